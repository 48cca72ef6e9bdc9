"""The coordinator's state and rules: an input and the time go in, facts and effects come out.

`orchestrator.shell` calls the engine, and the API reads the state through the views. The packages
are in layers; each imports only those below it. Nothing here does I/O, reads a clock or draws a
random number.
"""
