"""Code that travels with a job: the first time, unchanged, and with one line changed."""
