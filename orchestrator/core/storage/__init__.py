"""Space and retention of the log store and the journal.

Pure decisions; `orchestrator.shell` measures and removes.
"""
