"""Routes for the code that travels with jobs: uploads of users, downloads of nodes.

`orchestrator.api.app` registers them, and `orchestrator.shell.bundles` stores the content. They
never store a chunk under a name other than its SHA-256.
"""
