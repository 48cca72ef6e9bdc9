"""Views of the state, as the HTTP API returns them. Pure functions; they change nothing."""
