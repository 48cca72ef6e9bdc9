"""Routes of the HTTP API, one module per resource: access, reading, answer.

`orchestrator.server` builds the application. A route turns a request into an input for the owner of
the state, and answers from a view of the state. It never changes the state and never reads the
journal.
"""
