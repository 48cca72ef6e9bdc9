"""Code that travels with a job: the scan of a folder, its manifest, and its upload."""
