"""An attempt of a job from placement to end: launch, refusals, leases, retries, log delivery.

The engine calls it for each report of a task, and `nodes` if something happens to a whole node. It
never chooses nodes; `scheduling` does.
"""
