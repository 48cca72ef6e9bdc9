"""Generator of docs/reference/cli.md: `python -m tools.docs.cli_manual > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from muster.cli.commands import muster
from muster.cli.exit_codes import EXIT_CODES
from tools.docs.wrap import wrapped

_CONNECTION = ("--url", "--token-file", "--config", "--no-color", "--json")
_BEGIN = """\
# The command line

For users of the command line: every command with its options and exit codes. Made by
`python -m tools.docs.cli_manual > docs/reference/cli.md`; `muster VERB --help` prints the same.

{intro}

Results are on stdout, for programs to read: an id, a table, or JSON with `--json`. Messages for
people are on stderr. On a terminal, tables are fitted to its width: columns are shortened, and the
least important ones are left out. In a pipe, tables are complete. Colours are used on terminals
only, and not with `NO_COLOR` or `--no-color`. Control sequences in names of jobs, users and nodes
are escaped. Ctrl-C while following or waiting detaches without stopping the job; only
`muster bench` and `muster check` cancel their own jobs.

## Exit codes

| code | meaning |
|---|---|
{codes}

## Options of most verbs

| option | |
|---|---|
{common}
"""


def manual() -> str:
    """Return the whole page."""
    context = click.Context(muster, info_name="muster")
    verbs = [
        (name, command)
        for name in muster.list_commands(context)
        if (command := muster.get_command(context, name)) is not None
    ]
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    common = "\n".join(f"| `{option}` | {text} |" for option, text in _common())
    parts = [_BEGIN.format(intro=_prose(muster.help or ""), codes=codes, common=common)]
    for name, command in verbs:
        parts.append("\n".join(_verb(f"muster {name}", command)))
    return wrapped("\n".join(parts) + "\n")


def _common() -> list[tuple[str, str]]:
    """Return the common options of most commands, as `ps` has them."""
    context = click.Context(muster, info_name="muster")
    command = muster.get_command(context, "ps")
    assert command is not None
    return [pair for pair in _options(command) if pair[0].startswith(_CONNECTION)]


def _verb(name: str, command: click.Command) -> Iterator[str]:
    yield f"## {name}\n"
    if not command.add_help_option:
        yield f"{command.help} `{name} --help` prints that program's help.\n"
        return
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        yield f"{_prose(command.help or '')}\n"
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from (
                    line.replace("## ", "### ", 1) for line in _verb(f"{name} {inner}", found)
                )
        return
    yield f"    {_usage(context)}\n"
    yield f"{_prose(command.help or '')}\n"
    # Compare their text, too: --url of `init` has another meaning.
    common = _common()
    own = [pair for pair in _options(command) if pair not in common]
    if own:
        yield "| option | |"
        yield "|---|---|"
        yield from (f"| `{option}` | {text} |" for option, text in own)
        yield ""


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return " ".join([context.info_name or "", *pieces])


def _options(command: click.Command) -> list[tuple[str, str]]:
    """Return each option as typed, and its help. `|` separates table cells."""
    context = click.Context(command, info_name="muster")
    made = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            made.append((record[0].replace("|", "\\|"), record[1].replace("|", "\\|")))
    return made


def _prose(text: str) -> str:
    """Convert help text to Markdown: unwrapped parts become code."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip("\n").splitlines()
            paragraphs.append("\n".join(f"    {line}" for line in lines))
        else:
            paragraphs.append(re.sub(r"\s+", " ", paragraph).strip())
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    print(manual(), end="")
