"""Nodes that connect, fall silent, are drained, quarantined, or report failing hardware.

The engine calls it for reports, requests and timers of a node, and the views for its warnings. It
never takes silence for an end: `model.proof` says when a task is over.
"""
