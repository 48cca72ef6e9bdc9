"""Causes of failures, derived from a rank's exit status, error file and last lines."""
