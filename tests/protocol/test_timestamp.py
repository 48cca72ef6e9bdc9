"""Times of the HTTP API: RFC 3339, UTC with `Z`, to the microsecond, and never an exception."""

import math
from datetime import timedelta, timezone

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.http.views import JobSummary, Step
from muster.protocol.timestamp import maybe_timestamp, moment, timestamp
from muster.spec.errors import InvalidValueError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000.25, "2023-11-14T22:13:20.250000Z"),
        (-1.5, "1969-12-31T23:59:58.500000Z"),
        (-math.inf, "0001-01-01T00:00:00Z"),
        (math.inf, "9999-12-31T23:59:59Z"),
        (math.nan, "0001-01-01T00:00:00Z"),
    ],
)
def test_seconds_are_written_in_utc(seconds: float, text: str) -> None:
    assert msgspec.json.encode(timestamp(seconds)).decode() == f'"{text}"'


@given(st.floats(1.6e9, 2.2e9))
@example(1_700_000_000.1234568)
def test_a_time_that_was_written_is_not_after_what_it_is_of(seconds: float) -> None:
    written = timestamp(seconds)
    assert moment(written.isoformat(), 0.0) <= seconds
    assert seconds - written.timestamp() < 2e-6
    assert timestamp(written.timestamp()) == written


def test_an_event_that_has_not_happened_has_no_time() -> None:
    assert maybe_timestamp(None) is None
    assert maybe_timestamp(0.0) == timestamp(0)


@given(st.floats())
def test_every_number_has_a_time_that_is_read_back(seconds: float) -> None:
    step = Step(timestamp(seconds), "x")
    assert msgspec.json.decode(msgspec.json.encode(step), type=Step) == step


def test_a_time_without_its_zone_is_no_time() -> None:
    with pytest.raises(msgspec.ValidationError, match="timezone"):
        msgspec.json.decode(b'{"at": "2026-01-01T00:00:00", "text": ""}', type=Step)
    elsewhere = msgspec.json.decode(
        b'{"at": "2026-01-01T02:00:00+02:00", "text": ""}', type=Step
    ).at
    assert elsewhere.astimezone(timezone(timedelta(0))).hour == 0


def test_every_field_that_is_named_as_a_time_is_one() -> None:
    """A float that slipped through would be a second spelling of the same thing."""
    schema = msgspec.json.schema_components([JobSummary, Step])[1]
    for component in schema.values():
        for name, field in component.get("properties", {}).items():
            if name == "at" or name.endswith("_at"):
                kinds = field.get("anyOf", [field])
                assert all(k.get("format") == "date-time" or k["type"] == "null" for k in kinds)


def test_a_moment_is_a_time_or_a_span_before_now() -> None:
    assert moment("2023-11-14T22:13:20Z", 0.0) == 1_700_000_000.0
    assert moment("2023-11-14t23:13:20.5+01:00", 0.0) == 1_700_000_000.5
    assert moment("1h30m", 10_000.0) == 4_600.0


@pytest.mark.parametrize(
    "text", ["", "10", "2023-11-14", "2023-11-14T22:13:20", "yesterday", "25:00", "T", "-5m"]
)
def test_an_invalid_time_is_refused_with_a_correction(text: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        moment(text, 0.0)
    assert "write `" in refused.value.hint
