"""Store of the code that travels with jobs: content by hash, shared; references by user."""
