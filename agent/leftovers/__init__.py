"""What earlier lives of an agent left on this node: processes, units, folders, names; found and
removed.

The daemon calls it at the start, `muster doctor` reports what it finds.
"""
