"""The agent's rules: an input and the time go in, facts and effects come out.

The daemon's loop calls `turn` and performs the effects; all other packages of the agent post inputs
and read the state. The package does no I/O, reads no clock and never waits.
"""
