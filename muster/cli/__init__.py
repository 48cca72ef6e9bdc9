"""The command line, `muster`: its entry point, the table of commands, and the mapping of errors to
exit codes.

`main` is the entry point of the installed script. The commands talk to the coordinator only through
`muster.client`. A module here never imports a daemon, and imports a command only when it is used.
"""
