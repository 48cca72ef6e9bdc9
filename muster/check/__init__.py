"""The check of nodes against each other: its program, and parsers of the output.

`muster check` and the coordinator's node routes call it. The package is pure, except for the
program, which the job's interpreter runs with the standard library.
"""
