"""Quantities as people type them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.spec import units
from muster.spec.errors import InvalidValueError

DURATIONS = {
    "24h": 86400,
    "90m": 5400,
    "1d12h": 129600,
    "1w": 604800,
    "1.5h": 5400,
    "500ms": 0.5,
    "1d 2h": 93600,
    "1-00:00:00": 86400,
    "2-12": 216000,
    "1-02:30": 95400,
    "36:00:00": 129600,
    "00:00:01": 1,
    "0s": 0,
}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("90", "`90m`"),
        ("1.5", "`1.5h`"),
        ("10:30", "`10m30s` or `10h30m`"),
        ("1h1d", "`1d12h30m`"),
        ("1h1h", "`1d12h30m`"),
        ("", "24h"),
        ("-1h", "24h"),
        ("24 hours", "24h"),
        ("24H", "24h"),
        ("1-25:00:00", "24h"),
        ("01:60:00", "24h"),
        ("٣h", "24h"),
        ("9" * 400 + "h", "24h"),
        ("inf", "24h"),
    ],
)
def test_bad_durations(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        units.duration(text)
    assert hint in caught.value.hint


@given(st.integers(0, 10**12))
def test_duration_text_round_trips(millis: int) -> None:
    seconds = round(millis / 1000, 3)
    assert units.duration(units.duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("200GB", 200 * 10**9), ("1KiB", 1024), ("1.5MiB", 1572864), ("0B", 0), ("10 GB", 10**10)],
)
def test_sizes(text: str, count: int) -> None:
    assert units.size(text) == count


@pytest.mark.parametrize("text", ["200", "200G", "GB", "-1GB", "1iB", "1gb", ""])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InvalidValueError):
        units.size(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SIGTERM", "SIGTERM"),
        ("TERM", "SIGTERM"),
        ("term", "SIGTERM"),
        ("15", "SIGTERM"),
        ("USR1", "SIGUSR1"),
    ],
)
def test_signals(text: str, name: str) -> None:
    assert units.signal_name(text) == name


@pytest.mark.parametrize("text", ["", "SIG", "0", "99", "015", "SIGFOO", "TERM INT"])
def test_bad_signals(text: str) -> None:
    with pytest.raises(InvalidValueError):
        units.signal_name(text)


def test_signal_numbers_are_those_of_linux() -> None:
    import signal

    for name, number in units.SIGNALS.items():
        assert getattr(signal, name) == number


@pytest.mark.parametrize(
    ("text", "read"),
    [("8", (8, None)), ("0", (0, None)), ("H100:8", (8, "H100")), ("MI300X:4", (4, "MI300X"))],
)
def test_gpu(text: str, read: tuple[int, str | None]) -> None:
    assert units.gpu(text) == read
    assert units.gpu(str(units.gpu_text(*read))) == read


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("H100", "`H100:8`"),
        ("H100:80GB:8", "`H100:8`"),
        ("H100:80GB", "`H100:1`"),
        ("gpu:8", "`8`"),
        ("H100x4", "`H100:4`"),
        ("H100*4", "`H100:4`"),
        ("4xA100-80GB", "`A100-80GB:4`"),
        ("rtx4090", "`rtx4090:8`"),
        ("08", "`8`"),
        ("H100:0", "at least 1"),
        ("8:H100", "H100:8"),
        ("-1", "H100:8"),
        ("2000", "one node"),
        ("", "H100:8"),
    ],
)
def test_bad_gpu(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        units.gpu(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["010", "1_000", "4.0", "1e3", "٤", "", "+4", "0x8", "9" * 5000])
def test_bad_integers(text: str) -> None:
    with pytest.raises(InvalidValueError):
        units.integer(text)


@given(
    st.text(),
    st.sampled_from([units.duration, units.size, units.signal_name, units.gpu, units.integer]),
)
def test_any_text_is_read_or_refused(text: str, reader: Callable[[str], object]) -> None:
    said = "read"
    try:
        reader(text)
    except InvalidValueError as refused:
        said = refused.message
    assert said
