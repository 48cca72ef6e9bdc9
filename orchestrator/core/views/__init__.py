"""What users see of the state, as the answers of the HTTP API. Pure functions; they change
nothing."""
