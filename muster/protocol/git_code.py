"""Code of a job that its nodes fetch with git."""

from __future__ import annotations

import msgspec


class GitCode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit of a repository, by its full hash. "" until the client has resolved `ref`, the
    branch or tag that the job names ("": the remote's default branch).

    `secret` is the name of a file of the job's user on each node. `submodules`: fetch them too.
    """

    url: str
    commit: str = ""
    ref: str = ""
    secret: str = ""
    submodules: bool = False
