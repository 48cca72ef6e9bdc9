"""Scheduling: choice of the next job, its nodes, GPUs and network, and the reasons for waiting.

The engine calls it after facts that free capacity, and the views for explanations. It returns a
placement or a reason and never changes the state. An explanation uses the same code as a decision.
"""
