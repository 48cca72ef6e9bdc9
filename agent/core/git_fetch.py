"""The program that fetches a job's code with git, as the job's user, before its `setup`.

It is a script for sh, because a job's user may not be able to run the agent's own interpreter. Git
gets none of the job's variables, no hooks, no configuration but the site's, and asks nobody. It
offers the secret only to the host of the address, by a helper that reads the file: the secret is in
no argument, variable, log or message of Muster.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from agent.core.inputs import TaskPaths
from agent.core.shim_protocol import ShimFetch
from muster.protocol.git_code import GitCode

BYTES_MAX: Final = 4 << 30
"""Size of the pack and of the files that are checked out, as of code that travels."""
FILES_MAX: Final = 200_000
SECRETS: Final = ".config/muster/secrets"
_SHOWN_CHARS: Final = 12

_ENV: Final = {
    "GIT_ALLOW_PROTOCOL": "https:ssh",
    "GIT_ASKPASS": "",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "60",
    "GIT_SSH_VARIANT": "ssh",
    "GIT_TEMPLATE_DIR": "",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

# Fails if the sizes, one a line, are too many or too much.
_COUNT: Final = (
    """awk -v bytes="$bytes" -v files="$files" """
    """'{ sum += $1; if (sum > bytes || NR > files) exit 3 }'"""
)

# A branch of which the server gives no single commit, and a server of plain files, are fetched
# whole. HOME is the task's own folder, so that no configuration of the user is read.
SCRIPT: Final = rf"""
url=$1 commit=$2 origin=$3 secret=$4 submodules=$5 site=$6 scratch=$7 bytes=$8 files=$9
fail() {{ printf 'muster: %s\n' "$1" >&2; exit 1; }}
command -v git > /dev/null || fail 'git is not installed on this node'
[ -z "$site" ] || [ -r "$site" ] || fail "user $USER cannot read the git_config $site"
helper= ssh='ssh -oBatchMode=yes -oConnectTimeout=30'
if [ -n "$secret" ]; then
    MUSTER_SECRET_FILE=$HOME/{SECRETS}/$secret
    [ -f "$MUSTER_SECRET_FILE" ] && [ -r "$MUSTER_SECRET_FILE" ] ||
        fail "user $USER has no secret $secret on this node: $MUSTER_SECRET_FILE cannot be read"
    [ -z "$(find -L "$MUSTER_SECRET_FILE" -prune -perm /077)" ] ||
        fail "others may use the secret $secret on this node: chmod 600 $MUSTER_SECRET_FILE"
    export MUSTER_SECRET_FILE
    if [ -n "$origin" ]; then
        helper='!f() {{ [ "$1" = get ] || exit 0
            IFS= read -r line < "$MUSTER_SECRET_FILE" || [ -n "$line" ] || exit 0
            case $line in *:*) ;; *) line=git:$line ;; esac
            printf "username=%s\npassword=%s\n" "${{line%%:*}}" "${{line#*:}}"; }}; f'
    else
        ssh="$ssh -oIdentitiesOnly=yes -i \"\$MUSTER_SECRET_FILE\""
    fi
fi
export HOME="$scratch" GIT_SSH_COMMAND="$ssh"
unset XDG_CONFIG_HOME
said=$scratch/.muster-git
ulimit -f $((bytes / 512)) || :
run() {{
    git ${{site:+-c "include.path=$site"}} -c core.hooksPath=/dev/null -c core.askPass= \
        -c credential.helper= ${{helper:+-c "credential.$origin.helper=$helper"}} -c gc.auto=0 \
        -c init.defaultBranch=main -c advice.detachedHead=false "$@"
}}
too_large() {{ fail "the code is more than $((bytes >> 20)) MiB or $files files"; }}
run init -q .
run config remote.origin.url "$url"
run config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'
if ! run fetch -q --depth=1 --no-tags --no-recurse-submodules origin "$commit" 2> "$said"; then
    grep -Eq 'dumb http|unadvertised object' "$said" || {{ cat "$said" >&2; exit 1; }}
    run fetch -q --tags --no-recurse-submodules origin
fi
rm -f "$said"
run ls-tree -r -l "$commit" | awk '{{ print $4 }}' | {_COUNT} || too_large
run checkout -q --detach "$commit"
if [ -n "$submodules" ]; then
    run submodule --quiet update --init --recursive --depth 1 ||
        run submodule --quiet update --init --recursive
    [ "$(du -sk . | cut -f 1)" -le $((bytes / 512)) ] || too_large
    find . -name .git -prune -o ! -type d -printf '%s\n' | {_COUNT} || too_large
fi
"""


def fetch_program(code: GitCode | None, paths: TaskPaths, site: str) -> ShimFetch | None:
    """Return the program that fills the task's folder; None if the job has no code from git. `site`
    is a configuration file of git, or ""."""
    if code is None:
        return None
    parts = urlsplit(code.url)
    origin = f"https://{parts.netloc}" if parts.scheme == "https" else ""
    words = (code.url, code.commit, origin, code.secret, "yes" if code.submodules else "")
    limits = (str(BYTES_MAX), str(FILES_MAX))
    return ShimFetch(
        argv=("/bin/sh", "-euc", SCRIPT, "muster-git", *words, site, paths.scratch, *limits),
        env={**_ENV, "TMPDIR": paths.scratch},
        what=f"git fetch of {code.url} at {code.commit[:_SHOWN_CHARS]}",
    )
