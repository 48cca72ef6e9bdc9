"""The outbox of webhooks: due deliveries, and the results of delivery attempts.

The engine and the rules of gangs add events; `orchestrator.webhooks` sends them and reports the
results. The outbox keeps events over restarts, and never sends one itself.
"""
