"""Log lines of the facts that an operator follows."""

from typing import Final

import structlog

from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.enrolment import NodeRevoked

_SHOWN: Final = (
    "job",
    "attempt",
    "node",
    "nodes",
    "user",
    "epoch",
    "session",
    "peer",
    "origin",
    "by",
    "error",
)
_log = structlog.get_logger("muster.coordinator")


def log_fact(fact: f.Fact) -> None:
    if not fact.milestone:
        return
    fields = {name: value for name in _SHOWN if (value := getattr(fact, name, None)) is not None}
    if (token := getattr(fact, "token", None)) is not None:
        fields["token_id"] = token  # the log hides what is called a token
    if (role := getattr(fact, "role", None)) is not None:
        fields["role"] = role.value
    cause = getattr(fact, "cause", None)
    if cause is not None:
        fields["cause"], fields["why"] = cause.code.value, cause.text
    if isinstance(fact, NodeRevoked) and fact.why:
        _log.warning(type(fact).__name__, why=fact.why, **fields)
        return
    _log.info(type(fact).__name__, **fields)
