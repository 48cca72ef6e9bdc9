"""Command-line input: parameter types, references to jobs and nodes, and the job of `muster
submit`.

The commands call it. It checks everything before the first request, and never prints a result.
"""
