"""Programs that measure Muster beside its peers and print a table. Nothing here is a test."""
