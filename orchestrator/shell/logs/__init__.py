"""Log bytes of all jobs: append-only files, an index of arrival times, and readers.

Agents' bulk connections write to it, and the API reads from it. It never blocks the event loop with
a slow disk, and never acknowledges bytes before they are on disk.
"""
