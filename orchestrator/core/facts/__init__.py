"""Everything that can happen: inputs, facts with their durability, and effects.

A fact is journaled and applied; its class name is its tag in the journal.
"""
