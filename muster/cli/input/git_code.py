"""Code that nodes fetch with git: the commit of a branch or tag, found on the user's machine."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from msgspec.structs import replace

from muster.cli.errors import RefusedError
from muster.cli.input.job_input import JobInput
from muster.cli.output.format import note, safe
from muster.protocol.git_code import GitCode

_ANSWER_S: Final = 120.0
_COMMIT_CHARS: Final = 40
_SAID_LINES: Final = 5
_HEAD: Final = "HEAD"


def with_commit(job: JobInput) -> JobInput:
    """Return the job with the commit of its code, if that comes from git. Raises RefusedError."""
    code = job.spec.git
    workdir = job.mapping.get("workdir")
    if code is None or not isinstance(workdir, dict):
        return job
    if not code.commit:
        code = replace(code, commit=_commit_of(code))
    ref = f", {code.ref}" if code.ref else ""
    note(safe(f"code: {code.url} at {code.commit}{ref}"))
    mapping = {**job.mapping, "workdir": {**workdir, "commit": code.commit}}
    return job._replace(spec=replace(job.spec, git=code), mapping=mapping)


def _commit_of(code: GitCode) -> str:
    """Ask the remote. Git uses the configuration and credentials of the user who submits."""
    names = _names(code.ref)
    found = _ls_remote(code.url, [name for full in names for name in (full, f"{full}^{{}}")])
    # The commit that an annotated tag names comes second, as `NAME^{}`.
    commits = {full: found.get(f"{full}^{{}}") or found.get(full) for full in names}
    known = {full: commit for full, commit in commits.items() if commit}
    if not known:
        raise _refused(
            f"{code.url} has no branch or tag {code.ref}" if code.ref else f"{code.url} is empty",
            "`ref` is a branch, a tag, or a commit in full (40 digits)",
        )
    if len(set(known.values())) > 1:
        raise _refused(
            f"{code.ref} is a branch and a tag of {code.url}",
            f"write `ref: {' or `ref: '.join(f'{full}`' for full in known)}",
        )
    commit = next(iter(known.values()))
    if len(commit) != _COMMIT_CHARS:
        raise _refused(
            f"{code.url} has commits of SHA-256, which this release cannot fetch",
            "send a folder of it instead: `workdir: ./its-folder`",
        )
    return commit


def _names(ref: str) -> list[str]:
    if not ref or ref == _HEAD:
        return [_HEAD]
    return [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"]


def _ls_remote(url: str, names: list[str]) -> dict[str, str]:
    """Return the hashes of those of `names` that the remote has."""
    env = {**os.environ, "LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "https:ssh"}
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--quiet", "--", url, *names],
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_S,
        )
    except FileNotFoundError:
        raise _refused(
            "git is not installed on this machine, which finds the commit of `ref`",
            "install it, or write a commit in full as `ref`",
        ) from None
    except subprocess.TimeoutExpired:
        raise _refused(
            f"{url} has not answered within {_ANSWER_S:g} s",
            f"try it by hand: git ls-remote {url}",
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-_SAID_LINES:]
        lines = "\n".join(f"  {line}" for line in said)
        raise _refused(
            f"{url} cannot be read from this machine; git says:\n{lines}",
            f"try it by hand: git ls-remote {url}",
        )
    pairs = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    return {name: commit for commit, name in pairs if name in names}


def _refused(what: str, hint: str) -> RefusedError:
    lines = f"workdir: {what}\n  {hint}".split("\n")
    return RefusedError("\n".join(map(safe, lines)))
