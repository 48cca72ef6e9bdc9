"""The job a user writes: its types, and the way from text to them.

`parse` reads and checks, `overrides` and `from_command` serve the command line, `render` writes
the canonical spelling, `schema` publishes the format; `types` is what everyone else builds on.
"""
