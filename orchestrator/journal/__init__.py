"""The journal: durable facts in an SQLite database."""
