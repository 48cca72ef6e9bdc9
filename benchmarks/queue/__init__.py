"""The queue: cost of a pass, and quality of backfill in virtual time."""
