"""Bringing what the ranks write to the coordinator: bytes by offset, the file is the buffer."""
