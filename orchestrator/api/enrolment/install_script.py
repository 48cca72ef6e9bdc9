"""The script with which a machine gets Muster from its coordinator and joins."""

from __future__ import annotations

import shlex
from typing import Final

from muster.wheels.manifest import CURL_LIMITS, WheelManifest

# `main` is called in the last line, so that a script that was cut off on its way does nothing.
_SCRIPT: Final = r"""#!/bin/sh
# Install Muster from its coordinator, without a package index, and join. The wheels are checked by
# the hashes below. Arguments are those of `muster join`, besides HOST:PORT. Variables:
#   MUSTER_JOIN    the join secret (default: asked for)
#   MUSTER_PYTHON  interpreter of the venv (default: the first one for which there are wheels)
#   MUSTER_VENV    directory of the venv (default: /opt/muster, or ~/.local/share/muster); one that
#                  is there is replaced if it has other wheels, or does not work
#   MUSTER_BIN     directory of the link to `muster` (default: /usr/local/bin, or ~/.local/bin)
set -eu
umask 022
coordinator=@COORDINATOR@
pin=@PIN@
unit=/etc/systemd/system/muster-agent.service

wheels() {
    cat <<'END'
@WHEELS@
END
}

say() { printf 'muster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

find_python() {
    others=
    for python in ${MUSTER_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        target=$("$python" -c 'import ensurepip, platform, sys, venv
print("%d.%d-%s" % (sys.version_info[:2] + (platform.machine(),)))' 2>/dev/null </dev/null) ||
            continue
        if wheels | grep -q "^$target "; then return; fi
        others="$others $target"
    done
    [ -n "$others" ] || die "there is no Python with venv here; on Debian or Ubuntu:" \
        "apt-get install python3-venv"
    die "the coordinator has no wheels for$others; on its machine, run for one of them:" \
        "muster up --wheels-for TARGET"
}

ask() {
    (: </dev/tty) 2>/dev/null || die "there is no terminal to ask for the secret: set MUSTER_JOIN"
    stty -echo </dev/tty
    printf 'Join secret: ' >/dev/tty
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
    cmp -s "$scratch/list" "$venv/wheels.txt" &&
        "$venv/bin/muster" join --help >"$scratch/help" 2>&1 </dev/null
}

main() {
    if [ "$(id -u)" = 0 ]; then
        venv=/opt/muster bin=/usr/local/bin
    else
        venv=$HOME/.local/share/muster bin=$HOME/.local/bin
        # A join into a directory of one's own needs no root.
        case "${MUSTER_VENV:+--dir} $* " in
        *--dir*) ;;
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
    secret=${MUSTER_JOIN:-}
    unset MUSTER_JOIN
    case " $*" in
    *" mj1."*) ;;
    *) [ -n "$secret" ] || ask ;;
    esac

    wheels | grep "^$target " >"$scratch/list"
    installed || install
    if [ -e "$bin/muster" ] && [ ! -h "$bin/muster" ]; then
        say "$bin/muster is another program and stays; use $venv/bin/muster"
    else
        mkdir -p "$bin"
        ln -sf "$venv/bin/muster" "$bin/muster"
    fi
    printf '%s\n' "$secret" | "$venv/bin/muster" join "$coordinator" "$@"
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
