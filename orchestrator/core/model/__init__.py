"""The records of the state, their state machines, and rules that need only one record."""
