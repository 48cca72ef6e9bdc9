"""Command-line input: parameter types, references to jobs and nodes, and the job of `muster
submit`."""
