"""Accuracy and delay of hang detection, and the cost of monitoring."""
