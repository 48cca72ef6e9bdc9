"""Generator of docs/reference/failures.md from the taxonomy of failures and the other verdicts:
`python -m tools.docs.failures_page > docs/reference/failures.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.observations.xids import HARMLESS
from orchestrator.core.failures.classify import BY_SIGNAL, CONSEQUENCES, OUT_OF_MEMORY
from orchestrator.core.failures.taxonomy import RULES, Rule

_HEAD: Final = """\
# What a job can fail of

Made by `python -m tools.docs.failures_page > docs/reference/failures.md` from the table of
verdicts.

`muster show` says which rank failed first, on which node, how it ended, what it said last, and what
to do. The class is a stable word: `kind` in `--json`, and what `retry.never_on` takes. What a
node's kernel wrote goes before what the program wrote; of that its traceback counts, or its last
lines where there is none, and what is particular goes before what is general.

Whose it is decides who pays. **node**: `retry.infra` pays, and another node is tried. **program**:
`retry.user` pays. **peer**: ranks die of this when another one has failed, so the first failure is
looked for elsewhere; where none is found, it is the program's.
"""
_KERNEL: Final = """\
## By the kernel's log

A process that was killed for memory is `oom_killed`, and it is told how much it had; where a child
of the rank was killed, `host_out_of_memory`. An error of a GPU that the driver wrote down (Xid) is
`gpu_failed` and the node's, but for these, which a program can cause or which need nothing done:

| Xid | meaning |
|---|---|
"""
_OTHERS: Final = (
    (FailureKind.OOM_KILLED, "killed, and its cgroup or the kernel counts it", OUT_OF_MEMORY),
    (FailureKind.EXCEPTION, "an exception that is none of the above", ""),
    (FailureKind.EXITED, "any other exit code", ""),
)
_ASK: Final = "only its author can know: its last words are shown, `muster logs` has the rest"


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_by_words(), "", *_by_end(), "", _KERNEL + "\n".join(_xids()), ""])


def _by_words() -> Iterator[str]:
    yield "## By what it wrote last"
    yield ""
    yield "| class | for example | whose | what to do |"
    yield "|---|---|---|---|"
    for rule in sorted(RULES, key=lambda rule: list(FailureKind).index(rule.kind)):
        yield _row(rule.kind, _code(rule.sign), rule.infra, advice_of(rule))


def _by_end() -> Iterator[str]:
    yield "## By how it ended"
    yield ""
    yield "| class | how | whose | what to do |"
    yield "|---|---|---|---|"
    for number, verdict in BY_SIGNAL.items():
        yield _row(verdict.kind, f"signal {number}", verdict.infra, verdict.advice)
    for kind, how, advice in _OTHERS:
        yield _row(kind, how, False, advice or _ASK)


def _xids() -> Iterator[str]:
    for number, meaning in HARMLESS.items():
        yield f"| {number} | {meaning} |"


def advice_of(rule: Rule) -> str:
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
