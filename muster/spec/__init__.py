"""The job that a user writes: its model, and the way from text to it.

`parse` reads and checks, `overrides` and `from_command` serve the command line, `serialize` writes
the canonical spelling, `schema` publishes the format. Everything else builds on `model`.
"""
