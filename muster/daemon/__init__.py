"""What any daemon needs and that knows no domain: clock, config, logging, tasks, notify, TLS."""
