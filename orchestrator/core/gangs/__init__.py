"""One attempt of a job from its placement to its end: launch, refusals, leases, retries, log
delivery."""
