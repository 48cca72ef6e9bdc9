"""The journal: durable facts in an SQLite database, and the archive of ended jobs.

Only `orchestrator.shell` writes to it, one transaction per batch of decisions;
`orchestrator.server` opens it. It returns from a commit only when the facts are on disk, and never
changes the state.
"""
