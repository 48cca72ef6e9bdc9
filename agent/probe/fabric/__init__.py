"""RDMA equipment of a node, read from sysfs, proc and a few files below a root, and judged by the
rules of `muster.fabric`.

The agent, its monitors, `muster probe` and `muster doctor` call it. Any file may be absent, empty,
unreadable or wrong. An unreadable value is unknown, with the reason.
"""
