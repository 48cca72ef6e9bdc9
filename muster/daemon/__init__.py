"""Code shared by the daemons, without domain knowledge: clock, configuration, logging, tasks,
notification of systemd, TLS, durable files.

Both daemons and a few commands call it. It never imports a daemon, the client or the command line.
"""
