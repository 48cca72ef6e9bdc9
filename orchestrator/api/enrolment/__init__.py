"""Routes by which nodes join and renew their certificates, and from which they install Muster.

`orchestrator.api.app` registers them. A route here never decides about a node:
`orchestrator.core.nodes` does.
"""
