"""The commands for jobs, one module each.

`muster.cli.commands` imports a module when its command is used. A command prints through
`muster.cli.output` and returns its exit code; it never ends the process itself.
"""
