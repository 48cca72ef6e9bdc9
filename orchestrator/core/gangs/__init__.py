"""An attempt of a job from placement to end: launch, refusals, leases, retries, log delivery."""
