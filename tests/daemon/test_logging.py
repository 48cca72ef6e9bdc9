"""Format of a log line, and what it never contains. Each test configures anew."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from muster.daemon.logging import REDACTED, configure

CANARY = "c4n4ry"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The process-wide set-up as it was, for the tests after."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_away_from_a_terminal_it_is_json_with_utc_time() -> None:
    stream = io.StringIO()
    configure(level="info", fmt="auto", stream=stream)
    structlog.contextvars.bind_contextvars(node="gpu-01")
    structlog.get_logger("muster.test").info("attempt_closed", job=7, attempt=2)
    (line,) = lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    assert line == {
        "event": "attempt_closed",
        "job": 7,
        "attempt": 2,
        "node": "gpu-01",
        "level": "info",
        "logger": "muster.test",
    }


def test_on_a_terminal_it_is_for_people() -> None:
    stream = Terminal()
    configure(level="info", fmt="auto", stream=stream)
    structlog.get_logger().info("attempt_closed", job=7)
    assert "attempt_closed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_libraries_write_the_same_lines() -> None:
    stream = io.StringIO()
    configure(level="info", fmt="json", stream=stream)
    logging.getLogger("aiohttp.server").warning("took %d ms, password=%s", 5, "x")
    (line,) = lines(stream)
    assert line["event"] == "took 5 ms, password=x"
    assert line["logger"] == "aiohttp.server"
    assert line["level"] == "warning"


def test_entries_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure(level="warning", fmt="json", stream=stream)
    structlog.get_logger("a").info("quiet")
    logging.getLogger("b").info("quiet")
    structlog.get_logger("a").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_configuring_again_replaces_and_reaches_older_loggers() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(level="info", fmt="json", stream=first)
    log = structlog.get_logger("a")
    log.info("one")
    configure(level="info", fmt="json", stream=second)
    log.info("two")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["two"]


@pytest.mark.parametrize("fmt", ["json", "console"])
@pytest.mark.parametrize(
    "fields",
    [
        {"token": CANARY},
        {"agent_token": CANARY},
        {"Authorization": f"Bearer {CANARY}"},
        {"password": CANARY.encode()},
        {"client-secret": [CANARY]},
        {"secrets": {"HF": CANARY}},
        {"headers": {"Authorization": CANARY}},
        {"request": {"deep": [{"join.token": CANARY}]}},
        {"header": f"authorization: bearer {CANARY}"},
    ],
    ids=str,
)
def test_a_secret_is_not_written(fmt: Any, fields: dict[str, Any]) -> None:
    stream = io.StringIO()
    configure(level="info", fmt=fmt, stream=stream)
    structlog.get_logger("a").info("request_refused", **fields)
    logging.getLogger("b").error("refused", extra=fields)
    assert CANARY not in stream.getvalue()
    assert REDACTED in stream.getvalue()


@pytest.mark.parametrize("token", ["muster_user_3f9c0a1b_", f"mj1.{'a' * 64}.3f9c0a1b-"])
def test_of_a_token_in_a_text_the_id_alone_is_written(token: str) -> None:
    stream = io.StringIO()
    configure(level="info", fmt="json", stream=stream)
    structlog.get_logger("a").info("refused", why=f"no option {token}{'s3cret' * 8}")
    assert [line["why"] for line in lines(stream)] == [f"no option {token}..."]


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_an_error_shows_where_and_not_the_variables(fmt: Any) -> None:
    stream = io.StringIO()
    configure(level="info", fmt=fmt, stream=stream)
    held = CANARY + "x"
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        structlog.get_logger("a").exception("turn_failed")
    assert "RuntimeError: it broke" in stream.getvalue()
    assert "test_logging.py" in stream.getvalue()
    assert held not in stream.getvalue()


def test_names_that_only_resemble_secrets_are_written() -> None:
    stream = io.StringIO()
    configure(level="info", fmt="json", stream=stream)
    structlog.get_logger("a").info(
        "token_made", token_id="t1", token_file="/etc/x", tokenizer="bpe"
    )
    (line,) = lines(stream)
    assert (line["token_id"], line["token_file"], line["tokenizer"]) == ("t1", "/etc/x", "bpe")


def test_a_reader_that_stops_holds_no_daemon_up() -> None:
    """Lines wait for it, and beyond a bound they are dropped and counted."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stream, os.fdopen(reads, "rb", buffering=0) as reader:
        configure(level="info", fmt="json", stream=stream)
        log = structlog.get_logger("test")
        for number in range(20_000):
            log.info("line", number=number, text="x" * 100)
        data = b""
        while b"log_lines_dropped" not in data:
            # Each further line takes along what waits.
            log.info("more")
            data += reader.read(1 << 16)
    found = [json.loads(line) for line in data.splitlines()]
    numbers = [line["number"] for line in found if line["event"] == "line"]
    assert numbers == list(range(len(numbers)))
    assert found[-1]["lines"] >= 20_000 - len(numbers) > 0
