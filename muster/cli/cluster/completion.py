"""`muster completion`: shell completion for commands, options, jobs and nodes."""

from __future__ import annotations

import click

COMPLETE_VAR = "_MUSTER_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, *, shell: str) -> None:
    """Print the completion script of a shell. It queries the coordinator for ids and names.

    \b
    bash: muster completion bash > ~/.local/share/bash-completion/completions/muster
    zsh:  muster completion zsh > "${fpath[1]}/_muster"
    fish: muster completion fish > ~/.config/fish/completions/muster.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click completes no {shell}")
    print(kind(context.find_root().command, {}, "muster", COMPLETE_VAR).source())
