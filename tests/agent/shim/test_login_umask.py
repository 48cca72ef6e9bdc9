"""The umask of jobs: that of a login of their user."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.shim.system.login_umask import login_umask

DEFS = "# UMASK 000\nUMASK\t\t027  # for all\n"
GROUPS = "USERGROUPS_ENAB yes\n"


@pytest.mark.parametrize(
    ("text", "uid", "group", "gecos", "umask"),
    [
        ("", 1000, "users", "", 0o022),
        (DEFS, 1000, "users", "", 0o027),
        (DEFS, 1000, "users", "Ann,,,umask=077", 0o077),
        (DEFS, 1000, "users", "umask=0022,Ann", 0o022),
        (DEFS, 1000, "users", "Ann,,,umask=abc", 0o027),
        ("UMASK 99\n", 1000, "users", "", 0o022),
        ("UMASK\n", 1000, "users", "", 0o022),
        # A group of one's own.
        (DEFS + GROUPS, 1000, "users", "", 0o027),
        (DEFS + GROUPS, 1000, "ann", "", 0o007),
        ("UMASK 022\n" + GROUPS, 1000, "ann", "", 0o002),
        ("UMASK 022\nUSERGROUPS_ENAB no\n", 1000, "ann", "", 0o022),
        ("UMASK 022\n" + GROUPS, 1000, None, "", 0o022),
        ("UMASK 022\n" + GROUPS, 0, "ann", "", 0o022),
    ],
)
def test_it_is_that_of_a_login(
    tmp_path: Path, text: str, uid: int, group: str | None, gecos: str, umask: int
) -> None:
    path = tmp_path / "login.defs"
    path.write_text(text)
    assert login_umask(uid, "ann", group, gecos, str(path)) == umask


def test_without_the_file_it_is_022(tmp_path: Path) -> None:
    assert login_umask(1000, "ann", "ann", "", str(tmp_path / "none")) == 0o022
