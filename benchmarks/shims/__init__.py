"""Shims: how soon one is there, and what it takes."""
