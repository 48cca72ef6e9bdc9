"""The umask of a login of a user: by the GECOS field and /etc/login.defs, as of pam_umask(8)."""

from __future__ import annotations

import re

DEFAULT = 0o022
LOGIN_DEFS = "/etc/login.defs"
_GECOS = re.compile(r"(?:^|,)umask=([0-7]{1,4})(?:,|$)")
_OCTAL = re.compile(r"0*[0-7]{1,4}")


def login_umask(uid: int, name: str, group: str | None, gecos: str, path: str = LOGIN_DEFS) -> int:
    """The umask of a login of this user, whose primary group has the name `group`.

    A user whose group is named alike has it alone, by USERGROUPS_ENAB, and gives it the rights of
    the owner. What `/etc/pam.d` and login files set is not read.
    """
    settings = _settings(path)
    found = _GECOS.search(gecos)
    text = found[1] if found else settings.get("UMASK", "")
    umask = int(text, 8) & 0o777 if _OCTAL.fullmatch(text) else DEFAULT
    if uid != 0 and name == group and settings.get("USERGROUPS_ENAB", "").lower() == "yes":
        umask = (umask & 0o707) | (umask >> 3 & 0o070)
    return umask


def _settings(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return {}
    return {it[0]: it[1] for it in words if len(it) > 1 and not it[0].startswith("#")}
