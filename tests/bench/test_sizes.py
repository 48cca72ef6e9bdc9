"""Payload sizes as nccl-tests takes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.bench.sizes import SIZE_MAX, SizesError, read_sizes, size_text

K, M, G = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1M..1G", tuple(M << n for n in range(11))),
        ("8", (8,)),
        ("1K,64M", (K, 64 * M)),
        ("1M..5M", (M, 2 * M, 4 * M, 5 * M)),
        ("64m, 1g", (64 * M, G)),
        ("1MiB,1MB", (M,)),
        ("1G,1M..2M", (M, 2 * M, G)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert read_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no size"),
        ("1M..", "is no size"),
        ("big", "is no size"),
        ("-1M", "is no size"),
        ("1.5M", "is no size"),
        ("1M...2M", "is no size"),
        ("2M..1M", "goes down"),
        ("0", "no multiple of 4"),
        ("7", "no multiple of 4"),
        ("5000G", "is more than 1024G"),
    ],
)
def test_an_invalid_size_is_refused_with_a_correction(text: str, said: str) -> None:
    with pytest.raises(SizesError, match=said):
        read_sizes(text)


@given(st.integers(1, SIZE_MAX // 4).map(lambda words: 4 * words))
def test_a_size_is_read_as_it_is_written(size: int) -> None:
    assert read_sizes(size_text(size)) == (size,)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert read_sizes(text)
    except SizesError:
        pass
