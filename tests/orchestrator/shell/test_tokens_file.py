"""The tokens file of a new cluster: who and what is made of it, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.daemon.errors import ConfigError
from muster.protocol.roles import Role
from muster.protocol.tokens import TokenClass, digest
from orchestrator.shell.tokens_file import people_of


def entry(id_: str, class_: str, user: str, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "class": class_, "sha256": digest(id_), "user": user, **fields}


def written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"tokens": entries}))
    path.chmod(0o600)
    return path


def test_a_user_has_the_most_of_their_roles_and_a_token_its_own(tmp_path: Path) -> None:
    found = people_of(
        written(
            tmp_path / "tokens",
            entry("old1", "admin", "root"),
            entry("ann1", "user", "ann", role="viewer", teams=["lab"]),
            entry("ann2", "user", "ann", role="operator", teams=["web"]),
            entry("join1", "join", "root", expires="2027-01-31T12:00:00+01:00"),
        )
    )
    assert {user.name: (user.role, user.teams) for user in found.users.values()} == {
        "root": (Role.ADMIN, ()),
        "ann": (Role.OPERATOR, ("lab", "web")),
    }
    assert {token.id: (token.user, token.role) for token in found.tokens.values()} == {
        "old1": ("root", None),
        "ann1": ("ann", Role.VIEWER),
        "ann2": ("ann", None),
        "join1": ("", None),
    }
    join = found.tokens["join1"]
    assert (join.class_, join.expires) == (TokenClass.JOIN, 1801393200.0)
    assert found.imported


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o600, "no tokens file"),
        ("tokens: []", 0o644, "chmod 600"),
        ("tokens: 5", 0o600, "not a tokens file"),
        ("tokens: [{id: a}]", 0o600, "missing required field"),
        ("tokens: [{id: a, class: root, sha256: x, user: u}]", 0o600, "Invalid enum value"),
        ("tokens: [{id: a, class: admin, sha256: x, user: u}]", 0o600, "64 hex digits"),
    ],
)
def test_one_that_cannot_be_used_says_why(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=said):
        people_of(path)


@pytest.mark.parametrize("expires", ["soon", "2026-06-01T12:00:00", "2026-13-01", "1780315200"])
def test_a_date_that_cannot_be_read_is_reported(tmp_path: Path, expires: str) -> None:
    path = written(tmp_path / "tokens", entry("admin1", "admin", "root", expires=expires))
    with pytest.raises(ConfigError, match=r"token admin1: expires: .* 2027-01-31T12:00:00Z"):
        people_of(path)


@pytest.mark.parametrize("name", ["ann\n", "a\nb", "", "muster"])
def test_a_name_that_no_user_may_have_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "tokens", entry("ann1", "user", name))
    with pytest.raises(ConfigError, match="token ann1: user: "):
        people_of(path)
