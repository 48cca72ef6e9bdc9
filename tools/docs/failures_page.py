"""Generator of docs/reference/failures.md from the taxonomy of failures and the other verdicts:
`python -m tools.docs.failures_page > docs/reference/failures.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.observations.xids import HARMLESS
from orchestrator.core.failures import git_fetch
from orchestrator.core.failures.classify import BY_SIGNAL, CONSEQUENCES, OUT_OF_MEMORY
from orchestrator.core.failures.taxonomy import RULES, FailureRule

_HEAD: Final = """\
# Causes of failed jobs

For users who look for the meaning of a failure class, and for its remedy. Generated from the table
of verdicts by `python -m tools.docs.failures_page > docs/reference/failures.md`.

`muster show` names the rank that failed first, its node, its exit status, its last lines, and a
remedy. The class is stable: it is `kind` in `--json`, and a value for `retry.never_on`. The log of
the kernel takes precedence over the program's output. Of the output, the traceback counts, or else
its last lines; a specific rule takes precedence over a general one.

The owner of a failure determines which retry budget is charged. **node**: `retry.infra`, and the
next attempt is placed on another node. **program**: `retry.user`. **peer**: ranks die of this if
another rank has failed, so the first failure is searched for elsewhere; if there is none, the
program is the owner.
"""
_KERNEL: Final = """\
## By the kernel's log

A rank that was killed for memory is `oom_killed`, with the size of its memory. If a child of the
rank was killed, the failure is `host_out_of_memory`. A GPU error that the driver reported (Xid) is
`gpu_failed`, a failure of the node, except for these, which a program can cause or which need no
action:

| Xid | meaning |
|---|---|
"""
_GIT: Final = """\
## When git fetches the code

If a node cannot fetch the code that `workdir: {git: URL}` names, it refuses the job. The reason has
git's last line and one of these remedies. If two nodes refuse alike, or no other is left, the job
ends; otherwise `retry.infra` is charged, and another node takes its place.

| class | line of git | owner | remedy |
|---|---|---|---|"""
_OTHERS: Final = (
    (
        FailureKind.OOM_KILLED,
        "killed, and the cgroup or the kernel reports it",
        OUT_OF_MEMORY,
    ),
    (FailureKind.EXCEPTION, "any other exception", ""),
    (FailureKind.EXITED, "any other exit code", ""),
)
_ASK: Final = "specific to the program: its last lines are shown, `muster logs` has the rest"


def page() -> str:
    """Return the whole page."""
    kernel = _KERNEL + "\n".join(_xids())
    return "\n".join([_HEAD, *_by_words(), "", *_by_end(), "", *_of_git(), "", kernel, ""])


def _by_words() -> Iterator[str]:
    yield "## By the last output"
    yield ""
    yield "| class | example | owner | remedy |"
    yield "|---|---|---|---|"
    for rule in sorted(RULES, key=lambda rule: list(FailureKind).index(rule.kind)):
        yield _row(rule.kind, _code(rule.sign), rule.infra, advice_of(rule))


def _by_end() -> Iterator[str]:
    yield "## By the exit status"
    yield ""
    yield "| class | exit | owner | remedy |"
    yield "|---|---|---|---|"
    for number, verdict in BY_SIGNAL.items():
        yield _row(verdict.kind, f"signal {number}", verdict.infra, verdict.advice)
    for kind, how, advice in _OTHERS:
        yield _row(kind, how, False, advice or _ASK)


def _of_git() -> Iterator[str]:
    yield _GIT
    for rule in git_fetch.RULES:
        yield _row(FailureKind.CODE_NOT_FETCHED, _code(rule.example), True, rule.advice)
    yield _row(FailureKind.CODE_NOT_FETCHED, "anything else", True, git_fetch.ADVICE)


def _xids() -> Iterator[str]:
    for number, meaning in HARMLESS.items():
        yield f"| {number} | {meaning} |"


def advice_of(rule: FailureRule) -> str:
    """Return the hint for the rule's own sign."""
    found = rule.search(rule.sign)
    return rule.advice.format(*found.groups("?") if found else ())


def _row(kind: FailureKind, example: str, infra: bool, advice: str) -> str:
    whose = "node" if infra else "peer" if kind in CONSEQUENCES else "program"
    return "| " + " | ".join(_cell(it) for it in (f"`{kind}`", example, whose, advice)) + " |"


def _code(text: str) -> str:
    """Quote as code; text with a backtick is fenced by two."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
