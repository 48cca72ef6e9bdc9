"""Inputs, facts with their properties, and effects: everything that can happen.

A fact's class name is its tag in the journal.
"""
