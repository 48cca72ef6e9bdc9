"""A folder of wheels, from which nodes install Muster without a package index.

`muster up` fills it, and the coordinator serves the files that its manifest names. The package
never serves or installs anything itself.
"""
