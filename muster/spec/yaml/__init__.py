"""Loading of YAML and JSON for job files: structure without types, with positions for errors."""
