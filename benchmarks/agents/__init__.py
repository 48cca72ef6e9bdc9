"""Thousands of agents' connections: what each costs the coordinator."""
