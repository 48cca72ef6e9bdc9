"""The script with which a node or a person gets Muster from the coordinator."""

from __future__ import annotations

import shlex
from typing import Final

from muster.wheels.manifest import CURL_LIMITS, WheelManifest

# `main` is called in the last line, so that a script that was cut off on its way does nothing.
_SCRIPT: Final = r"""#!/bin/sh
# Install Muster from its coordinator, without a package index. The wheels are checked by the hashes
# below. The first argument says what follows; the others are those of the command:
#   join           make this machine a node (default): `muster join`, with HOST:PORT
#   login          log a person in, without root: `muster login`, with the URL (default if
#                  MUSTER_LOGIN is set)
#   install        nothing: for upgrades
# Variables:
#   MUSTER_JOIN    the join secret (default: asked for)
#   MUSTER_LOGIN   the person's token, ml1... (default: asked for)
#   MUSTER_PYTHON  interpreter of the venv (default: the first one for which there are wheels)
#   MUSTER_VENV    directory of the venv (default: /opt/muster, or ~/.local/share/muster); one that
#                  is there is replaced if it has other wheels, or does not work
#   MUSTER_BIN     directory of the link to `muster` (default: /usr/local/bin, or ~/.local/bin)
set -eu
umask 022
coordinator=@COORDINATOR@
pin=@PIN@
units=/etc/systemd/system
unit=$units/muster-agent.service

wheels() {
    cat <<'END'
@WHEELS@
END
}

say() { printf 'muster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

find_python() {
    others= old= bare=
    for python in ${MUSTER_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        version=$("$python" -c 'import sys
print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || continue
        case $version in 2.* | 3.[0-9] | 3.10) old=$version && continue ;; esac
        target=$("$python" -c 'import ensurepip, platform, sys, venv
print("%d.%d-%s" % (sys.version_info[:2] + (platform.machine(),)))' 2>/dev/null </dev/null) ||
            { bare=${bare:-$version} && continue; }
        if wheels | grep -q "^$target "; then return; fi
        others="$others $target"
    done
    [ -z "$others" ] || die "the coordinator has no wheels for$others; on its machine, run for" \
        "one of them: muster up --wheels-for TARGET"
    [ -z "$bare" ] || die "Python $bare is here, but without venv. Debian, Ubuntu: apt-get" \
        "install python$bare-venv; others: install Python with its standard library"
    die "Python 3.11 or newer with venv is needed${old:+, and this system has $old}. Debian," \
        "Ubuntu from 24.04: apt-get install python3-venv; Ubuntu 22.04: apt-get install" \
        "python3.11-venv; Fedora, RHEL: dnf install python3.12; SUSE: zypper install python312;" \
        "without root, name another one with MUSTER_PYTHON"
}

ask() { # PROMPT VARIABLE
    (: </dev/tty) 2>/dev/null || die "there is no terminal to ask for the secret: set $2"
    stty -echo </dev/tty
    printf '%s: ' "$1" >/dev/tty
    IFS= read -r secret </dev/tty || true
    stty echo </dev/tty
    printf '\n' >/dev/tty
}

# Put a venv that was built beside another into its place, and remove the other. Programs of a venv
# name its path. The two are exchanged in one step where the file system can.
replace() { # NEW VENV
    "$1/bin/python" -I - "$1" "$2" <<'END'
import ctypes, os, sys
from pathlib import Path

new, venv = map(Path, sys.argv[1:])
own = [path for path in (new / "bin").iterdir() if path.is_file() and not path.is_symlink()]
for path in (*own, new / "pyvenv.cfg"):
    data = path.read_bytes()
    if b"\0" not in data:
        path.write_bytes(data.replace(os.fsencode(new), os.fsencode(venv)))
if os.path.lexists(venv):
    at, exchange = -100, 2
    names = os.fsencode(new), os.fsencode(venv)
    if ctypes.CDLL(None).renameat2(at, names[0], at, names[1], exchange):
        old = f"{new}.old"
        os.rename(venv, old)
        os.rename(new, venv)
        os.rename(old, new)
else:
    os.rename(new, venv)
END
}

install() {
    say "fetching the wheels for $target"
    while read -r of requirement sha256 file; do
        curl -fsSk @CURL@ --pinnedpubkey "$pin" --retry 9 -o "$scratch/$file" \
            "https://$coordinator/v1/wheels/$file" </dev/null || die "$file cannot be fetched"
        printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" >>"$scratch/requirements.txt"
    done <"$scratch/list"

    say "installing into $venv"
    mkdir -p "$(dirname "$venv")"
    new=$(mktemp -d "$venv.XXXXXX")
    chmod 755 "$new"
    if ! { "$python" -m venv "$new" && PIP_CONFIG_FILE=/dev/null "$new/bin/python" -I -m pip \
        --isolated --quiet --disable-pip-version-check install --no-index --no-deps \
        --require-hashes --only-binary :all: --find-links "$scratch" \
        --requirement "$scratch/requirements.txt" &&
        "$new/bin/muster" join --help >"$scratch/help"; } </dev/null; then
        die "nothing was changed"
    fi
    cp "$scratch/list" "$new/wheels.txt"
    replace "$new" "$venv" || die "$venv cannot be replaced"
    # An agent that runs has lost the files of its release. Its jobs run on.
    if grep -qs "=$venv/bin/muster " "$unit"; then
        systemctl try-restart "${unit##*/}"
    fi
}

# The same wheels were installed here before, and they work.
installed() {
    [ "$(cat "$scratch/list")" = "$(cat "$venv/wheels.txt" 2>/dev/null)" ] &&
        "$venv/bin/muster" join --help >"$scratch/help" 2>&1 </dev/null
}

# The coordinator of this machine runs from the venv. Who upgrades it upgrades the venv.
of_coordinator() {
    [ "$(id -u)" = 0 ] && grep -qs "=$venv/bin/muster " "$units/muster-coordinator.service" ||
        { [ "$venv" = /opt/muster ] && [ -e /etc/muster/coordinator.yaml ]; } || return 1
    "$venv/bin/muster" join --help >"$scratch/help" 2>&1 </dev/null
}

main() {
    mode=join
    if [ -n "${MUSTER_LOGIN:-}" ]; then mode=login; fi
    case ${1:-} in join | login | install) mode=$1 && shift ;; esac
    if [ "$(uname -s)" != Linux ]; then
        die "Muster runs on Linux, and this is $(uname -s): use it on a Linux machine, over ssh"
    fi
    if [ "$(id -u)" = 0 ]; then
        venv=/opt/muster bin=/usr/local/bin
    else
        venv=$HOME/.local/share/muster bin=$HOME/.local/bin
        # A join into a directory of one's own needs no root.
        case "$mode ${MUSTER_VENV:+--dir} $* " in
        login* | install* | *--dir*) ;;
        *" --run-as"*)
            die "only root installs an agent that runs jobs as other users; put sudo after the" \
                "pipe: curl ... | sudo env MUSTER_JOIN=SECRET sh -s -- --run-as USER"
            ;;
        esac
    fi
    venv=${MUSTER_VENV:-$venv}
    case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
    bin=${MUSTER_BIN:-$bin}
    find_python
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
        die "$venv exists and is not a venv: move it away, or name another with MUSTER_VENV"
    fi
    scratch=$(mktemp -d)
    new=
    trap 'rm -rf -- "$scratch" ${new:+"$new"}' EXIT
    trap 'stty echo </dev/tty 2>/dev/null || true; exit 130' INT TERM
    secret=
    case $mode in
    join) secret=${MUSTER_JOIN:-} ;;
    login) secret=${MUSTER_LOGIN:-} ;;
    esac
    unset MUSTER_JOIN MUSTER_LOGIN
    case "$mode $secret $*" in
    "join  "*mj1.* | "login  "*ml1.*) ;; # an argument
    "join  "*) ask "Join secret" MUSTER_JOIN ;;
    "login  "*) ask Token MUSTER_LOGIN ;;
    esac

    wheels | grep "^$target " >"$scratch/list"
    if of_coordinator; then
        say "the coordinator runs from $venv, which stays as it is"
    else
        installed || install
    fi
    if [ -e "$bin/muster" ] && [ ! -h "$bin/muster" ]; then
        say "$bin/muster is another program and stays; use $venv/bin/muster"
    else
        mkdir -p "$bin"
        ln -sf "$venv/bin/muster" "$bin/muster"
    fi
    case ":$PATH:" in
    *":$bin:"*) ;;
    *) say "$bin is not in PATH: log in again, or run: PATH=$bin:\$PATH" ;;
    esac
    case $mode in
    join) printf '%s\n' "$secret" | "$venv/bin/muster" join "$coordinator" "$@" ;;
    login) printf '%s\n' "$secret" | "$venv/bin/muster" login "https://$coordinator" "$@" ;;
    install) say "$venv is ready: $("$venv/bin/muster" --version | tr -s ' ')" ;;
    esac
}

main "$@"
"""


def install_script(manifest: WheelManifest, coordinator: str, pin: str) -> str:
    """Return the script for a coordinator at HOST:PORT whose public key has this pin."""
    wheels = [
        f"{target} {_requirement(name)} {sha256} {name}"
        for target, names in sorted(manifest.targets.items())
        for name, sha256 in sorted(names.items())
    ]
    values = {
        "@CURL@": CURL_LIMITS,
        "@COORDINATOR@": shlex.quote(coordinator),
        "@PIN@": shlex.quote(pin),
        "@WHEELS@": "\n".join(wheels),
    }
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _requirement(wheel: str) -> str:
    name, version = wheel.split("-", 2)[:2]
    return f"{name}=={version}"
