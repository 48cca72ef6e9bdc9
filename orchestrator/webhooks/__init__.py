"""Delivery of job events to webhooks: at least once, signed, and only to allowed addresses."""
