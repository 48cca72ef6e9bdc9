"""Reading below a root: reasons instead of exceptions, and no way out."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agent.probe.fabric.fs_root import BYTES_MAX, EMPTY, NO_TEXT, TOO_LONG, FsRoot, Unread
from tests.agent.probe.fabric.trees import Node, refusing


def why(value: object) -> str:
    assert isinstance(value, Unread)
    return value.why


def test_text_is_stripped(node: Node) -> None:
    node.file("sys/a", "  4: ACTIVE \n\n")
    assert FsRoot(node.root).text("sys/a") == "4: ACTIVE"


def test_each_reason(node: Node) -> None:
    node.file("sys/empty", "")
    node.file("sys/binary", b"\xff\xfe")
    node.file("sys/long", b"a" * (BYTES_MAX + 1))
    node.file("sys/folder/file", "x")
    node.link("sys/dangling", "nowhere")
    node.link("sys/circle", "circle")
    os.mkfifo(node.root / "sys/fifo")
    tree = FsRoot(node.root)
    assert tree.text("sys/empty") is EMPTY
    assert tree.text("sys/binary") is NO_TEXT
    assert tree.text("sys/long") is TOO_LONG
    assert "directory" in why(tree.text("sys/folder"))
    assert "no such file" in why(tree.text("sys/none"))
    assert "no such file" in why(tree.text("sys/empty/below"))
    assert "no such file" in why(tree.text("sys/dangling"))
    assert "circular" in why(tree.text("sys/circle"))
    # Nobody writes to it: it is not waited for.
    assert isinstance(tree.text("sys/fifo"), Unread)
    assert "no such file" in why(tree.names("sys/none"))
    assert tree.names("sys/folder") == ("file",)


@pytest.mark.parametrize(
    ("number", "word", "empty"),
    [
        (errno.EINVAL, "EINVAL", True),
        (errno.ENODATA, "ENODATA", True),
        (errno.EACCES, "permission denied", False),
        (errno.EPERM, "not permitted", False),
        (errno.ENOENT, "no such file", False),
        (errno.EIO, "nput/output error", False),
    ],
)
def test_errors_of_the_kernel_are_reported(node: Node, number: int, word: str, empty: bool) -> None:
    node.file("sys/file", "x")
    found = FsRoot(node.root, refusing(node.root, ["sys/file"], number)).text("sys/file")
    assert word in why(found)
    assert isinstance(found, Unread)
    assert found.empty is empty


def test_a_long_file_comes_in_pieces(node: Node) -> None:
    text = "word " * 5000
    node.file("proc/long", text)
    assert FsRoot(node.root).text("proc/long") == text.strip()


@pytest.mark.parametrize(
    "target", ["/etc/secret", "../../../../../../../etc/secret", "/sys/../../etc/secret"]
)
def test_no_link_leads_out(node: Node, tmp_path: Path, target: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").write_text("of this machine")
    node.link("sys/deep/link", target)
    tree = FsRoot(node.root)
    assert "no such file" in why(tree.text("sys/deep/link"))
    # An absolute link is resolved below the root.
    node.file("etc/secret", "of that machine")
    assert FsRoot(node.root).text("sys/deep/link") == "of that machine"
    node.link("sys/folder", "/etc")
    assert FsRoot(node.root).text("sys/folder/secret") == "of that machine"
    assert FsRoot(node.root).real("sys/folder") == "etc"


def test_a_root_that_is_a_link(node: Node, tmp_path: Path) -> None:
    node.file("sys/file", "x")
    (tmp_path / "link").symlink_to(node.root)
    tree = FsRoot(tmp_path / "link")
    assert tree.text("sys/file") == "x"
    assert tree.real("sys") == "sys"
    assert not tree.live
    assert FsRoot(Path("/")).live
    assert FsRoot(Path("/../.")).live


def test_names_that_no_terminal_should_see_are_left_out(node: Node) -> None:
    folder = node.file("sys/ok", "x").parent
    os.close(os.open(os.fsencode(folder) + b"/\xff\x1b", os.O_CREAT | os.O_WRONLY))
    assert FsRoot(node.root).names("sys") == ("ok",)


def test_a_part_of_a_binary_file(node: Node) -> None:
    node.file("config", bytes(range(256)))
    tree = FsRoot(node.root)
    assert tree.window("config", 16, 2) == b"\x10\x11"
    assert tree.window("config", 300, 2) == b""
    assert tree.window("none", 0, 2) == b""


def test_only_plain_files_of_the_user_are_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of theirs to a device would have root open it, which for some is to start them."""
    node.file("home/ada/file", "mine")
    node.file("etc/secret", "of the machine")
    home = Path(node.root) / "home/ada"
    (home / "dotfile").symlink_to("file")
    (home / "device").symlink_to("/dev/null")
    os.mkfifo(home / "pipe")
    tree = FsRoot(node.root)
    assert tree.text_of_user("home/ada/file") == "mine"
    assert tree.text_of_user("home/ada/dotfile") == "mine"
    for name in ("device", "pipe", "none"):
        assert isinstance(tree.text_of_user(f"home/ada/{name}"), Unread)
    (home / "link").symlink_to("/etc/secret")
    real = os.stat

    def stat(path: Any, **given: Any) -> os.stat_result:
        found = real(path, **given)
        if str(path) != str(home):
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    assert tree.text_of_user("home/ada/link") == "of the machine"
    monkeypatch.setattr(os, "stat", stat)
    assert isinstance(tree.text_of_user("home/ada/link"), Unread)
