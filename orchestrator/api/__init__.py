"""HTTP, streams and authorization."""
