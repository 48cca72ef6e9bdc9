"""Telling the webhooks of jobs how these go: at least once, signed, and only those allowed."""
