"""The deterministic simulator: the real cores under a virtual clock, all else made up."""
