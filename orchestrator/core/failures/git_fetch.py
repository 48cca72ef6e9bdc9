"""Remedies for code that git could not fetch on a node, by the last lines of git."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class FetchRule(NamedTuple):
    """`example` is a line of git's that the pattern finds."""

    example: str
    pattern: re.Pattern[str]
    advice: str


_LINE_CHARS_MAX: Final = 300
_NOISE: Final = re.compile(r"^(?:hint|remote|warning): |^$")
ADVICE: Final = "try it by hand on that node, as the user of the job"


def _rule(example: str, pattern: str, advice: str) -> FetchRule:
    return FetchRule(example, re.compile(pattern), advice)


RULES: Final = (
    _rule(
        "muster: user ann has no secret github on this node",
        r"muster: (?:user \S+ has no secret|others may use the secret)",
        "the secret is a file of the job's user on each node, with mode 600: a token, or "
        "USER:TOKEN, or for ssh a private key",
    ),
    _rule(
        "muster: git is not installed on this node",
        r"git is not installed",
        "install git on the node, or send a folder: `workdir: .`",
    ),
    _rule(
        "muster: user ann cannot read the git_config /etc/muster/gitconfig",
        r"cannot read the git_config",
        "the file that `git_config` of the agent names has to be readable by all users",
    ),
    _rule(
        "muster: the code is more than 4096 MiB or 200000 files",
        r"muster: the code is more than|died of signal 25|File too large",
        "keep data and checkpoints out of the repository, on storage that the nodes mount",
    ),
    _rule(
        "fatal: unable to write file data.bin: No space left on device",
        r"No space left on device|Disk quota exceeded",
        "the disk of the agent's state_dir is full: make room there",
    ),
    _rule(
        "Host key verification failed.",
        r"Host key verification failed",
        "ssh does not know the host: add its key to /etc/ssh/ssh_known_hosts of the node, or to "
        "the known_hosts of the job's user",
    ),
    _rule(
        "fatal: could not read Username for 'https://host': terminal prompts disabled",
        r"Authentication failed|could not read (?:Username|Password)|Permission denied \(|"
        r"error: 40[13]\b|[Aa]ccess denied",
        "the host wants credentials, which the nodes need, too: name a `secret`",
    ),
    _rule(
        "fatal: remote error: upload-pack: not our ref 0123456789",
        r"not our ref|unadvertised object|(?:unable to read|not a) tree|not a valid object"
        r"|[Nn]ot a valid|bad object|did not match any file|upload-pack: not",
        "the remote has no such commit (any more): push it, or submit again for the newest",
    ),
    _rule(
        "fatal: repository 'https://host/x/' not found",
        r"[Rr]epository .*not found|not found: did you run|does not appear to be a git repository"
        r"|error: 404\b",
        "there is no such repository, or it is private and the nodes need a `secret`",
    ),
    _rule(
        "fatal: unable to access 'https://host/x/': Could not resolve host: host",
        r"Could not resolve|Failed to connect|Couldn't connect|Connection (?:refused|reset)"
        r"|[Nn]etwork is unreachable|No route to host|timed out|Name or service not known",
        "the node does not reach the host: see its network, or set http.proxy in the file that "
        "`git_config` of the agent names; or send a folder: `workdir: .`",
    ),
    _rule(
        "fatal: unable to access 'https://host/x/': SSL certificate problem",
        r"SSL certificate|certificate verification failed|issuer certificate|TLS",
        "the node does not trust the host: install its CA there, or set http.sslCAInfo in the file "
        "that `git_config` of the agent names",
    ),
    _rule(
        "fatal: transport 'file' not allowed",
        r"transport '.*' not allowed",
        "submodules have to come by https or ssh",
    ),
)


def last_line(said: str) -> str:
    """Return the line of git's output that says most, shortened; "" if there is none."""
    lines = [line.strip() for line in said.splitlines()]
    telling = [line for line in lines if not _NOISE.search(line)]
    for line in reversed(telling):
        if any(rule.pattern.search(line) for rule in RULES):
            return line[:_LINE_CHARS_MAX]
    return telling[-1][:_LINE_CHARS_MAX] if telling else ""


def advice_on(line: str) -> str:
    """Return the remedy for a line of git's."""
    return next((rule.advice for rule in RULES if rule.pattern.search(line)), ADVICE)
