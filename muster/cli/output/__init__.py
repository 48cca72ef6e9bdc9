"""What users see: tables, text, JSON, log lines and views. Nothing here calls the coordinator
unless it is given a client.
"""
