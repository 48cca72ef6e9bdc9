"""Code that travels with jobs, over HTTP."""
