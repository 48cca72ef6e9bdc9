"""Space and retention of the log store and the journal: how much, how long, and what goes first.

`orchestrator.shell` calls it, measures and removes. The decisions are pure. They never allow a
removal by age while the clock is in doubt.
"""
