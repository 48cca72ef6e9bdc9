"""The programs of a task: their preparation as the job's user, start, ranks, signals and end.

Only `agent.shim.task` and `agent.shim.main` call it. It never talks to the agent.
"""
