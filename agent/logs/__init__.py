"""Shipping of the ranks' output to the coordinator, by byte offset; the file is the buffer."""
