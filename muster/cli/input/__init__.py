"""What users type: parameter types, references to jobs and nodes, and the job of `muster
submit`."""
