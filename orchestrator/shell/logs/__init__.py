"""Log bytes of all jobs: files that only grow, an index of when they came, reading them."""
