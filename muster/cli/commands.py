"""The commands of `muster`. Each command's module is imported only when the command is used."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Sequence
from typing import Final

import click

from muster.cli.exec_daemon import daemon_command
from muster.cli.exit_codes import EXIT_CODES

# Name -> help text. The command is `command` in the module `muster.cli.jobs.<name>`.
JOBS: Final = {
    "submit": "Submit a job; prints its id.",
    "ps": "List jobs.",
    "show": "Show one job: state, reason, nodes, timeline.",
    "explain": "Show why a job waits, per node, and when it can start.",
    "logs": "Print or follow the output of a job.",
    "attach": "Follow a job's logs; exits with its code.",
    "wait": "Wait for jobs to end; exits with their code.",
    "cancel": "Stop jobs, or remove them from the queue.",
    "signal": "Signal the ranks of a running job.",
    "stacks": "Show the current stacks of a running job's ranks.",
    "evidence": "Collect everything known about a job in one file to send.",
    "hold": "Keep waiting jobs from starting.",
    "release": "Release held jobs.",
    "set": "Change the priority, time limit or name of a job.",
    "rerun": "Submit a job again, changed or not; prints its id.",
    "diff": "Show the differences between two jobs.",
    "events": "List the events of a job.",
}
# Like JOBS, but in `muster.cli.cluster.<name>`.
CLUSTER: Final = {
    "nodes": "List the nodes.",
    "node": "Show a node, drain or resume nodes.",
    "bench": "Measure all-reduce between nodes.",
    "check": "Check that nodes match and reach each other.",
    "whoami": "Print the user that your token belongs to.",
    "version": "Show the versions of client and coordinator.",
    "schema": "Print the JSON Schema of the job file.",
    "completion": "Print shell completion for bash, zsh or fish.",
    "login": "Check a token and write the client's file.",
    "logout": "Remove the client's file.",
    "audit": "List the requests of users (audit log).",
    "user": "Add, list, change and disable users.",
    "token": "Create, list and revoke tokens.",
    "up": "Set up and start the coordinator on this machine.",
    "init": "Write the configuration and tokens of a new cluster.",
}
# Name -> help text, the daemon's package, and its first arguments.
DAEMONS: Final[dict[str, tuple[str, ...]]] = {
    "coordinator": ("Run the coordinator.", "orchestrator"),
    "backup": (
        "Copy the coordinator's journal to a file; the coordinator may be running.",
        "orchestrator",
        "backup",
    ),
    "restore": (
        "Replace the journal of a stopped coordinator by a backup.",
        "orchestrator",
        "restore",
    ),
    "agent": ("Run a node's agent.", "agent"),
    "join": ("Make this machine a node of a cluster.", "agent", "join"),
    "probe": ("Show this node's HCAs and GPUs, and which of them jobs use.", "agent", "probe"),
    "doctor": ("Show problems of this node's fabric, and how to fix them.", "agent", "doctor"),
}
# Words of other systems, with ours.
OTHER_WORDS: Final = {
    "kill": "cancel JOB",
    "stop": "cancel JOB",
    "scancel": "cancel JOB",
    "list": "ps",
    "ls": "ps",
    "queue": "ps",
    "squeue": "ps",
    "status": "show JOB, or: muster ps",
    "sinfo": "nodes",
    "drain": "node drain NODE --reason TEXT",
    "resume": "node resume NODE",
    "sbatch": "submit FILE, or: muster submit --from-sbatch SCRIPT",
    "run": "submit -- COMMAND",
    "srun": "submit -- COMMAND",
    "tail": "logs -f JOB",
    "sacct": "ps -a",
    "scontrol": "show JOB, or: muster node show NODE",
}
VERBS: Final = {**JOBS, **CLUSTER, **{name: words[0] for name, words in DAEMONS.items()}}


class Verbs(click.Group):
    """A command group that imports a command on use and lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in DAEMONS:
            return daemon_command(cmd_name, *DAEMONS[cmd_name][1:])
        package = "jobs" if cmd_name in JOBS else "cluster"
        module = importlib.import_module(f"muster.cli.{package}.{cmd_name}")
        command: click.Command = module.command
        if not gc.isenabled():
            # Because imported modules stay alive, exclude them from garbage collection.
            gc.freeze()
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if ours := OTHER_WORDS.get(args[0]):
                raise click.UsageError(
                    f"there is no command {args[0]!r}; use: muster {ours}", ctx
                ) from None
            raise click.NoSuchCommand(
                error.command_name, possibilities=list(VERBS), ctx=ctx
            ) from None

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl(list(EXIT_CODES))


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from muster.cli.cluster.version import own_line

        print(own_line())
        context.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version of this client; `muster version` also asks the coordinator.",
)
def muster() -> None:
    """Run multi-node PyTorch jobs on bare-metal nodes.

    JOB is an id, a name (your newest job of that name), or `last` or `-` (your newest job). Muster
    finds the coordinator and your token by --url and --token-file, then by MUSTER_URL, MUSTER_TOKEN
    and MUSTER_CA, then in ~/.config/muster/client.yaml. --config or MUSTER_CONFIG names another
    file.
    """


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises what the command raises."""
    instruction = os.environ.get("_MUSTER_COMPLETE")
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(muster, {}, "muster", "_MUSTER_COMPLETE", instruction)
    try:
        with muster.make_context("muster", list(arguments)) as context:
            code = muster.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0
