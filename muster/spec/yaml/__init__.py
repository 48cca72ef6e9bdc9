"""YAML and JSON as the job file takes them: structure without typing, with positions for errors."""
