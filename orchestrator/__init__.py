"""The coordinator. `orchestrator.__main__` reads the configuration and runs `server`, which opens
the journal, builds the owner of the state and serves the API.

`python -m orchestrator` is the only caller. The coordinator never touches a process of a job: it
orders agents to.
"""
