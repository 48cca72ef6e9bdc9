"""Checks of a parsed job: settings that conflict, and advice on variables. The parser and
`muster submit` call them; they never read text."""
