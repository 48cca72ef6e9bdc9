"""The outbox of webhooks: what is due, and what follows from an attempt to deliver it."""
