"""A folder of wheels, from which nodes install Muster without a package index."""
