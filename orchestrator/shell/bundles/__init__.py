"""Store of the code that travels with jobs: content by hash, shared; references by user.

`orchestrator.server` opens it and the API's routes use it. It never removes content that a live job
names.
"""
