"""Code that travels with a job: the scan of a folder, its manifest, and packs of chunks.

`muster submit` scans a folder and sends what the coordinator lacks; the coordinator and the agents
use the manifest and the packs to store and to verify it. The package has no network code, and never
reads a file that the ignore rules exclude.
"""
