"""Failures that the kernel's log and NVML report, each event once."""
