"""What an agent reads of its node."""
