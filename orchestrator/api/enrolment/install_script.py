"""The script with which a machine gets Muster from its coordinator and joins."""

from __future__ import annotations

import shlex
from typing import Final

from muster.wheels.manifest import WheelManifest

# `main` is called in the last line, so that a script that was cut off on its way does nothing.
_SCRIPT: Final = r"""#!/bin/sh
# Install Muster from its coordinator, without a package index, and join. The wheels are checked by
# the hashes below. Arguments are those of `muster join`, besides HOST:PORT. Variables:
#   MUSTER_JOIN    the join secret (default: asked for)
#   MUSTER_PYTHON  interpreter of the venv (default: the first one for which there are wheels)
#   MUSTER_VENV    directory of the venv (default: /opt/muster, or ~/.local/share/muster)
#   MUSTER_BIN     directory of the link to `muster` (default: /usr/local/bin, or ~/.local/bin)
set -eu
umask 022
coordinator=@COORDINATOR@
pin=@PIN@

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

main() {
    if [ "$(id -u)" = 0 ]; then
        venv=/opt/muster bin=/usr/local/bin
    else
        venv=$HOME/.local/share/muster bin=$HOME/.local/bin
    fi
    venv=${MUSTER_VENV:-$venv}
    bin=${MUSTER_BIN:-$bin}
    find_python
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
        die "$venv exists and is not a venv: move it away, or name another with MUSTER_VENV"
    fi
    scratch=$(mktemp -d)
    trap 'rm -rf -- "$scratch"' EXIT
    trap 'stty echo </dev/tty 2>/dev/null || true; exit 130' INT TERM
    secret=${MUSTER_JOIN:-}
    unset MUSTER_JOIN
    case " $*" in
    *" mj1."*) ;;
    *) [ -n "$secret" ] || ask ;;
    esac

    say "fetching the wheels for $target"
    wheels >"$scratch/list"
    while read -r of requirement sha256 file; do
        [ "$of" = "$target" ] || continue
        curl -fsSk --pinnedpubkey "$pin" --retry 9 -o "$scratch/$file" \
            "https://$coordinator/v1/wheels/$file" </dev/null || die "$file cannot be fetched"
        printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" >>"$scratch/requirements.txt"
    done <"$scratch/list"

    say "installing into $venv"
    new=
    [ -e "$venv" ] || new=$venv
    if ! { "$python" -m venv "$venv" && PIP_CONFIG_FILE=/dev/null "$venv/bin/python" -I -m pip \
        --isolated --quiet --disable-pip-version-check install --no-index --no-deps \
        --require-hashes --only-binary :all: --find-links "$scratch" \
        --requirement "$scratch/requirements.txt"; } </dev/null; then
        [ -z "$new" ] || rm -rf -- "$new"
        die "nothing was installed"
    fi
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
