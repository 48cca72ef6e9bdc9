"""Commands that a shim accepts, and its refusals of all others."""

from __future__ import annotations

import pytest

from agent.shim.commands import Malformed, parse, signal_number
from agent.shim.messages import (
    GRACE_S,
    ShimKill,
    ShimLease,
    ShimPrepare,
    ShimRelease,
    ShimStart,
    ShimStop,
)


def test_a_minimal_command_has_defaults() -> None:
    prepare = parse({"cmd": "prepare"})
    assert isinstance(prepare, ShimPrepare)
    assert (prepare.launcher, prepare.cwd, prepare.user, prepare.env) == ("none", None, None, None)
    assert prepare.allow_root is False
    stop = parse({"cmd": "stop"})
    assert isinstance(stop, ShimStop)
    assert (stop.signal, stop.grace_s) == ("SIGTERM", GRACE_S)
    lease = parse({"cmd": "lease"})
    assert isinstance(lease, ShimLease)
    assert (lease.ttl_s, lease.until) == (0, None)
    assert isinstance(parse({"cmd": "kill"}), ShimKill)
    assert isinstance(parse({"cmd": "release"}), ShimRelease)


@pytest.mark.parametrize("fetch", ["x", {}, {"argv": []}, {"argv": "x"}, {"argv": [1]}])
def test_a_fetch_is_a_program(fetch: object) -> None:
    with pytest.raises(Malformed):
        parse({"cmd": "prepare", "fetch": fetch})
    prepare = parse({"cmd": "prepare", "fetch": {"argv": ["sh"], "env": {"A": "1"}, "what": "x"}})
    assert isinstance(prepare, ShimPrepare)
    assert prepare.fetch is not None
    assert (prepare.fetch.argv, prepare.fetch.env) == (["sh"], {"A": "1"})


def test_fields_of_a_newer_agent_are_ignored() -> None:
    start = parse({"cmd": "start", "argv": ["true"], "colour": "blue"})
    assert isinstance(start, ShimStart)
    assert start.argv == ["true"]


@pytest.mark.parametrize(("name", "number"), [("SIGUSR1", 10), ("USR1", 10), ("KILL", 9)])
def test_signals_by_name(name: str, number: int) -> None:
    stop = parse({"cmd": "stop", "signal": name})
    assert isinstance(stop, ShimStop)
    assert signal_number(stop.signal) == number


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({}, "None"),
        ({"cmd": "fly"}, "fly"),
        ({"cmd": "prepare", "launcher": "mpirun"}, "mpirun"),
        ({"cmd": "prepare", "cwd": "a\0b"}, "cwd"),
        ({"cmd": "prepare", "user": "root"}, "user"),
        ({"cmd": "prepare", "setup": "uv sync"}, "setup"),
        ({"cmd": "prepare", "env": {"A=B": "1"}}, "A=B"),
        ({"cmd": "prepare", "env": {"A": 1}}, "A"),
        ({"cmd": "start", "argv": ["a", 1]}, "argv"),
        ({"cmd": "start", "argv": ["a\0"]}, "argv"),
        ({"cmd": "start", "listen_port": 70000}, "70000"),
        ({"cmd": "start", "listen_port": "29500"}, "29500"),
        ({"cmd": "stop", "signal": "SIGNOTHING"}, "SIGNOTHING"),
        ({"cmd": "stop", "grace_s": -1}, "grace_s"),
        ({"cmd": "stop", "grace_s": True}, "grace_s"),
        ({"cmd": "lease", "ttl_s": float("nan")}, "ttl_s"),
        ({"cmd": "lease", "until": "tomorrow"}, "until"),
        ({"cmd": "signal", "signal": "USR1"}, "number"),
        ({"cmd": "signal", "signal": "USR1", "number": True}, "number"),
        ({"cmd": "prepare", "hosts": {"source": "/a"}}, "hosts"),
    ],
)
def test_an_unreadable_part_is_named(document: dict[str, object], names: str) -> None:
    with pytest.raises(Malformed, match=names):
        parse(document)
