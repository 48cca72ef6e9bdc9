"""`workdir: {git: URL}`: strict addresses, names and commits."""

from __future__ import annotations

import pytest

from muster.protocol.git_code import GitCode
from muster.spec.errors import SpecError, SpecProblem
from muster.spec.overrides import apply_overrides
from muster.spec.parse import parse_mapping
from muster.spec.pool_defaults import check_defaults
from muster.spec.serialize import to_mapping

URL = "https://host/team/x.git"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def read(**keys: object) -> GitCode | None:
    return parse_mapping({"run": "x.py", "workdir": {"git": URL, **keys}}).git


def refused(**keys: object) -> SpecProblem:
    with pytest.raises(SpecError) as caught:
        read(**keys)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "https://git.example.org:8443/a/b",
        "https://dev.azure.com/org/My%20Project/_git/repo",
        "ssh://git@host/x",
        "ssh://host:2222/~ann/x.git",
        "git@github.com:org/repo.git",
        "ann@host:/srv/x",
    ],
)
def test_addresses(url: str) -> None:
    spec = parse_mapping({"run": "x.py", "workdir": {"git": url}})
    assert spec.git == GitCode(url)
    assert (spec.workdir, spec.bundle) == (None, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/x",
        "git://host/x",
        "file:///srv/x",
        "ext::sh -c true",
        "/srv/x.git",
        "../x",
        "host:x",
        "-uhttps://host/x",
        "--upload-pack=x",
        "https://-host/x",
        "ssh://-oProxyCommand=x/x",
        "ssh://git@-oProxyCommand=x/x",
        "-oProxyCommand=x@host:x",
        "git@-oProxyCommand=x:x",
        "git@host:-x",
        "https://host",
        "https://host/",
        "https://host/x?y",
        "https://host/x#y",
        "https://host/x%0ahost=evil",
        "https://host/x%0D",
        "https://host/x y",
        "https://host/x\n",
        "https://host/x\0",
        "https://[::1]/x",
        "https://host:123456/x",
        f"https://host/{'x' * 2000}",
        "ssh://git:pw@host/x",
        "HTTPS://host/x",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    problem = refused(git=url)
    assert problem.field == "workdir.git"
    assert problem.hint


@pytest.mark.parametrize("user", ["ann", "ann:pw-4711", ":pw-4711", "token-4711"])
def test_credentials_in_an_address_are_refused_and_not_repeated(user: str) -> None:
    problem = refused(git=f"https://{user}@host/x")
    assert "credentials" in problem.message
    assert "secret" in problem.hint
    assert "4711" not in str(problem)


@pytest.mark.parametrize(
    "ref", ["main", "v1.10", "feature/ü", "refs/heads/x", "1.10", "a@b", "HEAD"]
)
def test_refs(ref: str) -> None:
    assert read(ref=ref) == GitCode(URL, ref=ref)


@pytest.mark.parametrize(
    "ref",
    [
        "-x",
        "--upload-pack=x",
        "a..b",
        "a b",
        "a~1",
        "a^{}",
        "a:b",
        "a*",
        "a?",
        "a[b",
        "a\\b",
        "a@{1}",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.",
        "a.lock",
        "a\nb",
        "a\n",
        "a\x7f",
        "x" * 256,
    ],
)
def test_other_refs_are_refused(ref: str) -> None:
    assert refused(ref=ref).field == "workdir.ref"


def test_a_full_commit_needs_no_branch() -> None:
    assert read(ref=COMMIT.upper()) == GitCode(URL, COMMIT)
    assert read(ref=COMMIT, commit=COMMIT) == GitCode(URL, COMMIT)
    assert read(ref="main", commit=COMMIT) == GitCode(URL, COMMIT, "main")
    assert refused(ref=COMMIT, commit="f" * 40).field == "workdir.commit"
    assert refused(commit="0123456").field == "workdir.commit"
    assert read(ref="0123456") == GitCode(URL, ref="0123456")


def test_secrets_and_submodules() -> None:
    assert read(secret="github", submodules="true") == GitCode(
        URL, secret="github", submodules=True
    )
    assert read(submodules=False) == GitCode(URL)
    for name in ("", "../x", "a/b", ".x", "-x", "a b", "a\n", "x" * 65):
        assert refused(secret=name).field == "workdir.secret"


def test_git_excludes_other_folders_and_its_keys_need_it() -> None:
    assert refused(path="/x").field == "workdir.path"
    assert refused(bundle="0" * 64).field == "workdir.bundle"
    with pytest.raises(SpecError) as caught:
        parse_mapping({"run": "x.py", "workdir": {"path": "/x", "ref": "main"}})
    assert caught.value.problems[0].field == "workdir.ref"
    with pytest.raises(SpecError, match=r"workdir: \{git: https"):
        parse_mapping({"run": "x.py", "workdir": URL})
    with pytest.raises(SpecError, match="did you mean `git`"):
        parse_mapping({"run": "x.py", "workdir": {"git": URL, "url": URL}})


def test_it_is_written_as_it_was_read() -> None:
    whole: dict[str, object] = {
        "git": URL,
        "ref": "main",
        "commit": COMMIT,
        "secret": "github",
        "submodules": True,
    }
    spec = parse_mapping({"run": "x.py", "workdir": whole})
    assert to_mapping(spec)["workdir"] == whole
    assert parse_mapping(to_mapping(spec)) == spec
    changed = apply_overrides(to_mapping(spec), ["workdir.ref=v2"])
    assert parse_mapping(changed).git == GitCode(URL, "", "v2", "github", True)
    assert apply_overrides(to_mapping(spec), ["workdir=/x"])["workdir"] == "/x"


def test_it_is_no_default_of_a_pool() -> None:
    with pytest.raises(SpecError, match="cannot be sent with each job"):
        check_defaults("gpu", {"workdir": {"git": URL, "ref": COMMIT}})
