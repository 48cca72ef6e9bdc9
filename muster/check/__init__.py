"""The check of nodes against each other: its program, and parsers of the output. Pure, except for
the program, which the job's interpreter runs with the standard library."""
