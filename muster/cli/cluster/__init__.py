"""The commands for nodes, the cluster, its tokens and this client, one module each.

`muster.cli.commands` imports a module when its command is used. A command reaches the coordinator
through `muster.client` alone, and never imports a daemon.
"""
