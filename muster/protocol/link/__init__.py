"""The link between coordinator and agents: its messages, their order, encoding and bounds.

Both daemons use it. It never reads or writes a connection.
"""
