"""Owns one task's processes; standard library only; outlives the agent."""
