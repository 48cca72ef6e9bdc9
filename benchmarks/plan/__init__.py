"""The cost of the fabric plan of a large gang."""
