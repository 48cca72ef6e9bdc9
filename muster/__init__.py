"""What users type and import, and what both daemons share. Imports neither daemon."""
