"""Code that travels with jobs: fetched, verified, kept, and copied for each task."""
