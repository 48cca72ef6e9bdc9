"""What the HTTP API costs where very many jobs have ended."""
