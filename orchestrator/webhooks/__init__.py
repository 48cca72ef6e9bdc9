"""Delivery of job events to webhooks: at least once and signed.

`orchestrator.server` starts the sender, which takes the events from `core.webhooks` and posts their
results as inputs. It never connects to an address that the allowlist lacks.
"""
