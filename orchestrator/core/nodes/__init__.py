"""Nodes that connect, fall silent, are drained, quarantined, or report failing hardware."""
