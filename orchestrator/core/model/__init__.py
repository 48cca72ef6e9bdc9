"""The state's records, their state machines, and what follows from one record alone."""
