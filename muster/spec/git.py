"""Reader of code from git: `workdir: {git: URL, ref: REF, secret: NAME, submodules: true}`."""

from __future__ import annotations

import re
from typing import Final

from muster.protocol.git_code import GitCode
from muster.spec import field_readers
from muster.spec.errors import InvalidValueError, shown
from muster.spec.yaml.loader import scalar_text
from muster.spec.yaml.mapping_reader import Section

_KEYS: Final = ("ref", "commit", "secret", "submodules")
_MAX_URL_CHARS: Final = 2000
_HOST: Final = r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}"
_USER: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
# Encoded control characters could add lines to what git says to its helpers.
_PATH: Final = r"(?:[A-Za-z0-9._~+@:,=/-]|%[2-9A-Fa-f][0-9A-Fa-f])+"
HTTPS: Final = rf"https://{_HOST}(:[0-9]{{1,5}})?/{_PATH}"
SSH: Final = rf"ssh://({_USER}@)?{_HOST}(:[0-9]{{1,5}})?/{_PATH}|{_USER}@{_HOST}:/?(?!-){_PATH}"
FILE_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
COMMIT: Final = r"[0-9a-fA-F]{40}"
# The rules of `git check-ref-format`, and no option.
_NOT_IN_REF: Final = r"\x00- \x7f~^:?*\[\\"
REF: Final = rf"(?!-)(?!.*(\.\.|@\{{|//|/\.|\.lock(/|$)))[^{_NOT_IN_REF}/.][^{_NOT_IN_REF}]*"
_URL: Final = re.compile(rf"{HTTPS}|{SSH}")
_REF: Final = re.compile(rf"{REF}(?<![/.])")
_MAX_REF_CHARS: Final = 255
_EXAMPLE: Final = "write `git: https://HOST/PATH` or `git: ssh://git@HOST/PATH`"


def read_git(part: Section) -> GitCode | None:
    """Read the keys of a repository from the map under `workdir`; None without `git`."""
    found = part.take("git")
    ref = part.read("ref", git_ref, "")
    commit = part.read("commit", _commit, "")
    secret = part.read("secret", _secret, "")
    submodules = part.read("submodules", field_readers.boolean, False)
    if found is None:
        for key in _KEYS:
            if key in part.raw and "git" not in part.raw:
                hint = "write `workdir: {git: https://HOST/PATH}`"
                part.problems.add(f"{part.path}.{key}", None, "goes only with `git`", hint)
        return None
    try:
        url = git_url(scalar_text(found.value))
    except InvalidValueError as refused:
        # An address with a password in it is not repeated.
        text = None if "@" in str(found.value) else shown(found.value)
        part.problems.refuse(found.path, text, refused)
        return None
    if re.fullmatch(COMMIT, ref):
        if commit not in ("", ref.lower()):
            part.problems.add(f"{part.path}.commit", commit, "is not `ref`", "leave it out")
        ref, commit = "", ref.lower()
    return GitCode(url, commit, ref, secret, submodules)


def git_url(text: str) -> str:
    """Check the address of a repository: https, ssh, or git@HOST:PATH, which is ssh."""
    if _URL.fullmatch(text) and len(text) <= _MAX_URL_CHARS:
        return text
    scheme, separator, rest = text.partition("://")
    if text.startswith("http://"):
        raise InvalidValueError(
            "could be read and changed on its way", "write an address with https:// or ssh://"
        )
    authority = rest.partition("/")[0]
    if separator and "@" in authority and (scheme == "https" or ":" in authority.split("@")[0]):
        raise InvalidValueError(
            "has credentials in it",
            "leave them out, and name a file on the nodes: `secret: NAME`",
        )
    raise InvalidValueError("is no address of a repository over https or ssh", _EXAMPLE)


def git_ref(text: str) -> str:
    """Check the name of a branch or tag, or a full commit."""
    if not _REF.fullmatch(text) or len(text) > _MAX_REF_CHARS:
        raise InvalidValueError(
            "is not the name of a branch or tag, nor a full commit", "write `ref: main`"
        )
    return text


def _commit(text: str) -> str:
    if not re.fullmatch(COMMIT, text):
        raise InvalidValueError(
            "is not a full commit", "leave it out: submitting finds the commit of `ref`"
        )
    return text.lower()


def _secret(text: str) -> str:
    if not re.fullmatch(FILE_NAME, text):
        raise InvalidValueError(
            "is not the name of a secret",
            "write the name of a file in ~/.config/muster/secrets on the nodes, such as "
            "`secret: github`",
        )
    return text
