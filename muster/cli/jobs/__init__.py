"""The commands for jobs, one module each. `muster.cli.commands` imports a module when its command
is used."""
