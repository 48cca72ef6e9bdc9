"""The account as which a job runs: looked up by name, and taken on whole or not at all."""

from __future__ import annotations

import grp
import os
import pwd

from agent.shim.system import syscalls
from agent.shim.system.login_umask import DEFAULT, login_umask

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Credentials:
    """An account. `become`: a child has to change to it. `umask` is that of its logins."""

    __slots__ = ("become", "gid", "groups", "home", "name", "shell", "uid", "umask")

    def __init__(
        self,
        name: str,
        uid: int,
        gid: int,
        groups: list[int],
        home: str,
        shell: str,
        become: bool,
        umask: int = DEFAULT,
    ) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home
        self.shell = shell
        self.become = become
        self.umask = umask


def own_identity() -> Credentials:
    """The account of this process. Without an entry in the user database, the name is made of the
    uid.
    """
    uid, gid = os.geteuid(), os.getegid()
    umask = DEFAULT
    try:
        entry = pwd.getpwuid(uid)
        name, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
        umask = _umask(entry)
    except KeyError:
        name, home, shell = f"uid{uid}", "/", "/bin/sh"
    shell = shell or "/bin/sh"
    return Credentials(name, uid, gid, os.getgroups(), home, shell, become=False, umask=umask)


def look_up(name: str) -> Credentials:
    """The account of that name on this node. Raises KeyError. May wait for a directory server."""
    entry = pwd.getpwnam(name)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Credentials(
        entry.pw_name,
        entry.pw_uid,
        entry.pw_gid,
        groups,
        entry.pw_dir,
        entry.pw_shell or "/bin/sh",
        become=entry.pw_uid != os.geteuid(),
        umask=_umask(entry),
    )


def _umask(entry: pwd.struct_passwd) -> int:
    try:
        group = grp.getgrgid(entry.pw_gid).gr_name
    except KeyError:
        group = None
    return login_umask(entry.pw_uid, entry.pw_name, group, entry.pw_gecos)


def take_on(identity: Credentials, no_new_privileges: bool) -> None:
    """Become `identity` for ever. Raises OSError, also if the kernel did not change everything."""
    if identity.become:
        # Otherwise it would be the agent's, which jobs of all users share. It counts towards root's
        # quota of keys, which is large.
        syscalls.own_keyring()
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        _verify(identity)
    if no_new_privileges:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _verify(identity: Credentials) -> None:
    if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
        raise PermissionError(1, f"the process did not become {identity.name}")
    if set(os.getgroups()) != set(identity.groups):
        raise PermissionError(1, f"the process did not get the groups of {identity.name}")
    if identity.uid != 0:
        try:
            os.setuid(0)
        except OSError:
            return
        raise PermissionError(
            1, f"the process could go back to root after becoming {identity.name}"
        )


def base_environment(identity: Credentials) -> dict[str, str]:
    """The environment that every job has, independent of the agent's own."""
    return {
        "PATH": PATH,
        "HOME": identity.home,
        "USER": identity.name,
        "LOGNAME": identity.name,
        "SHELL": identity.shell,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
