"""Memory of the folders from which code was sent: whole, or not there."""

from pathlib import Path

import pytest

from muster.bundle.sources import folder_of, remember
from tests.small_disk import fill, small_disk

NAME = "a" * 64


def test_the_folder_of_a_bundle_is_remembered(tmp_path: Path) -> None:
    assert folder_of(tmp_path, NAME) is None
    remember(tmp_path, NAME, tmp_path / "code")
    assert folder_of(tmp_path, NAME) == tmp_path / "code"


@pytest.mark.parametrize("note", [b"", b"code"])
def test_a_note_that_is_no_absolute_path_is_none(tmp_path: Path, note: bytes) -> None:
    """An empty one would be the current folder, which is sent then."""
    (tmp_path / f"{NAME}.folder").write_bytes(note)
    assert folder_of(tmp_path, NAME) is None


@pytest.mark.root
def test_a_full_disk_keeps_no_half_of_a_note(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        filler = fill(disk)
        remember(disk, NAME, tmp_path)
        assert list(disk.iterdir()) == [filler]
        filler.unlink()
        remember(disk, NAME, tmp_path)
        assert folder_of(disk, NAME) == tmp_path
