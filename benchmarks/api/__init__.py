"""The cost of the HTTP API with very many ended jobs."""
