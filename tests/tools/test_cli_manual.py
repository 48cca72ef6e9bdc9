"""docs/reference/cli.md is made from the commands, and its exit codes from the code."""

import re
from pathlib import Path

import click

from muster.cli.commands import VERBS, muster
from muster.cli.errors import EXIT_USAGE, EXIT_WARNED
from muster.cli.exit_codes import EXIT_CODES
from muster.protocol import outcome
from tools.docs.cli_manual import manual

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_page_is_made_from_the_commands() -> None:
    made = "python -m tools.docs.cli_manual > docs/reference/cli.md"
    assert PAGE.read_text() == manual(), f"a command has changed: {made}"


def test_every_verb_and_every_option_is_there() -> None:
    text = PAGE.read_text()
    for verb in VERBS:
        assert f"\n## muster {verb}\n" in text
    for option in ("--from-sbatch", "--idempotency-key", "--watch", "--no-color", "--config"):
        assert option in text


def test_every_exit_code_has_its_line() -> None:
    numbers = {int(code) for code, _ in EXIT_CODES if re.fullmatch("[0-9]+", code)}
    known = {value for name, value in vars(outcome).items() if name.startswith("EXIT_")}
    assert numbers == {0, EXIT_WARNED, EXIT_USAGE} | known


def test_every_number_that_an_option_takes_has_both_bounds() -> None:
    found, context = 0, click.Context(muster)
    waiting: list[tuple[str, click.Command]] = [("muster", muster)]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                below = command.get_command(context, verb)
                assert below is not None
                waiting.append((f"{name} {verb}", below))
        for option in command.params:
            if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
                kind = option.type
                assert isinstance(kind, click.IntRange | click.FloatRange), f"{name} {option.opts}"
                assert None not in (kind.min, kind.max), f"{name} {option.opts}"
                found += 1
    assert found > 5
