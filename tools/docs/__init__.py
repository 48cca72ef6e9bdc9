"""Generators of the pages of docs/ that are made from code."""
