"""Space of the log store, and what may be removed for its age.

Pure decisions; `orchestrator.shell` measures and removes.
"""
