"""Latency and throughput of logs, and the effect of a log storm on other jobs."""
