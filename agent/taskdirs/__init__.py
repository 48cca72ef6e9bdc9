"""Task directories, created closed to others and removed without following a link.

`agent.tasks` creates and removes one per task, and the daemon checks at its start that users can
enter them. The package also knows the account that a job runs as. It never opens a path that a job
could have replaced by a link.
"""
