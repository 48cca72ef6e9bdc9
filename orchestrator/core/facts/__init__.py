"""Inputs, facts with their properties, and effects: everything that can happen.

All packages of the core make or read them; the journal stores the facts. A fact's class name is its
tag in the journal. A class here never holds a rule.
"""
