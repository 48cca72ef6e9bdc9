"""Probes of an agent's node."""
