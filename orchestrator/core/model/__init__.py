"""The records of the state, their state machines, and rules that need only one record.

All of the coordinator reads it. Only `engine.apply` and its helpers change a record, by facts. A
module here never imports another package of the core.
"""
