"""Code shared by the daemons, without domain knowledge: clock, config, logging, tasks,
notify, TLS.
"""
