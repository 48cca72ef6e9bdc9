"""Log bytes of all jobs: append-only files, an index of arrival times, and readers."""
