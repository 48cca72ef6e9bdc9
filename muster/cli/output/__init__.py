"""Output for users: tables, text, JSON, log lines and views. Code here calls the coordinator only
if it is given a client."""
