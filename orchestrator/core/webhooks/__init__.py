"""The outbox of webhooks: due deliveries, and the results of delivery attempts."""
