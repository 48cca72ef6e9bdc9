"""The decision engine: an input becomes facts, each fact is applied and may cause more.

`orchestrator.shell.coordinator` calls `turn`; replay calls `apply` alone. The engine dispatches to
the packages of each subject and holds no rule of its own.
"""
