"""Whether nodes agree and reach each other: the program that they run, and what its output means.
Pure but for that program, which the job's interpreter runs: it imports the standard library."""
