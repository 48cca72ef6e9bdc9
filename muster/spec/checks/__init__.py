"""Checks of a parsed job: settings that conflict, and advice on variables.

The parser and `muster submit` call them. They never read text.
"""
