"""Entry point of the coordinator: `python -m orchestrator --config FILE`. With `backup` or
`restore` as the first word, it works on the journal instead.

Exit codes: 0 after SIGTERM or SIGINT, 2 for an unusable configuration, 1 for other errors.
"""

import muster.daemon.fast_imports  # noqa: F401  before whatever imports aiohttp

# isort: split
import argparse
import asyncio
import contextlib
import getpass
import os
import resource
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from muster.daemon import logging as daemon_logging
from muster.daemon.clock import SystemClock
from muster.daemon.errors import (
    ConfigError,
    DaemonError,
    DirectoryLockedError,
    TaskEndedError,
    TlsError,
)
from muster.daemon.process_env import prepare_process_env
from muster.daemon.tls import server_context
from muster.http.people import user_name_problem
from muster.protocol.roles import Role
from muster.protocol.text import named
from muster.protocol.tokens import TokenClass
from orchestrator.config import CoordinatorConfig, ca_pem, load, webhook_secret
from orchestrator.core.engine.decide import VERSION
from orchestrator.core.facts.people import TokenCreated, UserAdded, UserChanged
from orchestrator.core.facts.restored import NodeDeclaredLost
from orchestrator.enrolment import enrolment_settings
from orchestrator.journal.backup import (
    back_up,
    examined,
    examined_copy,
    restore,
    salvaged,
    undo_interrupted_restore,
)
from orchestrator.journal.errors import (
    CorruptJournalError,
    HalfRestoredError,
    LostLogError,
    LostTailError,
)
from orchestrator.journal.journal import Journal
from orchestrator.server import imported, serve
from orchestrator.shell.logs.folder import refuse_unmounted
from orchestrator.shell.new_token import draw
from orchestrator.shell.replay import replay

_SERVE: Final = "coordinator"
BACKUP: Final = "backup"
RESTORE: Final = "restore"
_OF_THE_JOURNAL: Final = {
    BACKUP: "Copy the journal to a new file and verify it; the coordinator may be running.",
    RESTORE: "Replace the journal of a stopped coordinator by a backup. What was "
    "there stays beside it.",
}

_log = structlog.get_logger("muster.coordinator")


def main(argv: Sequence[str] | None = None) -> int:
    prepare_process_env()
    # Because journal, backups and logs contain secrets of jobs, also while they are written.
    os.umask(0o077)
    arguments = _parse(sys.argv[1:] if argv is None else list(argv))
    verb = arguments.verb
    try:
        config = load(file=arguments.config, environ=os.environ)
        if arguments.check:
            return _check(config)
        if arguments.new_admin:
            return _new_admin(config, arguments.new_admin)
        if verb == BACKUP:
            return _back_up(config, arguments.file)
        if verb == RESTORE:
            undo_interrupted_restore(config.state_dir)
            if arguments.file is None and not arguments.salvage:
                return _go(config)
            if not arguments.salvage:
                return _restore(config, arguments.file, go=arguments.go)
            with salvaged(config.state_dir, config.job_logs_path, replay) as copy:
                return _restore(config, copy, go=arguments.go)
        daemon_logging.configure(level=config.log.level, fmt=config.log.format)
        _raise_file_limit()
        read = partial(load, file=arguments.config, environ=os.environ)
        asyncio.run(serve(config, read))
    except (ConfigError, TlsError) as error:
        return _complain(verb, str(error), 2)
    except TaskEndedError as error:
        # The state in memory may differ from the disk: exit, and start again from the disk.
        _log.critical("coordinator_failed", why=str(error), exc_info=error.__cause__)
        sys.stderr.flush()
        os._exit(1)
    except CorruptJournalError as error:
        given = (
            "" if arguments.config is None else f" --config {shlex.quote(str(arguments.config))}"
        )
        last = "as a last resort, " if isinstance(error, LostLogError) else ""
        salvage = (
            f"go on with what can be read, without what came after it, with `muster "
            f"restore{given} --salvage`, or "
            if isinstance(error, LostTailError)
            else f"if it was a salvage, run `muster restore{given} --salvage` again, or "
            if isinstance(error, HalfRestoredError)
            else ""
        )
        return _complain(
            verb,
            f"{error}; nothing was changed: {last}{salvage}put a backup in its place with "
            f"`muster restore{given} BACKUP`",
            1,
        )
    except DaemonError as error:
        return _complain(verb, str(error), 1)
    return 0


def _parse(given: Sequence[str]) -> argparse.Namespace:
    verb = given[0] if given and given[0] in _OF_THE_JOURNAL else _SERVE
    if verb == _SERVE:
        return _parser().parse_args(given, argparse.Namespace(verb=verb))
    parser = argparse.ArgumentParser(prog=f"muster {verb}", description=_OF_THE_JOURNAL[verb])
    parser.add_argument("--config", type=Path, metavar="FILE", help="the coordinator's (YAML)")
    if verb == BACKUP:
        parser.add_argument("file", type=Path, metavar="BACKUP", help="the file of the backup")
    else:
        source = parser.add_mutually_exclusive_group()
        source.add_argument(
            "file", type=Path, metavar="BACKUP", nargs="?", help="the file of the backup"
        )
        source.add_argument(
            "--salvage",
            action="store_true",
            help="in its place the readable part of a journal whose end is damaged or lost",
        )
        parser.add_argument(
            "--go",
            action="store_true",
            help="do not wait for nodes that do not say hello: nothing of a job runs there; "
            "without BACKUP: after a restore that was made before",
        )
    defaults = argparse.Namespace(verb=verb, check=False, new_admin="")
    arguments = parser.parse_args(given[1:], defaults)
    if verb == RESTORE and arguments.file is None and not arguments.salvage and not arguments.go:
        parser.error("one of BACKUP, --salvage and --go is required")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muster coordinator", description="The coordinator of a Muster cluster."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (YAML)")
    parser.add_argument("--version", action="version", version=f"muster {VERSION}")
    parser.add_argument(
        "--check", action="store_true", help="check configuration, tokens and journal, and exit"
    )
    parser.add_argument(
        "--new-admin",
        metavar="USER",
        default="",
        help="make USER an admin of a stopped coordinator, print a new token, and exit",
    )
    return parser


def _new_admin(config: CoordinatorConfig, user: str) -> int:
    """Make a user an enabled admin of a stopped coordinator, and print a new token."""
    if problem := user_name_problem(user):
        raise ConfigError(f"--new-admin: {user!r} {problem}")
    try:
        journal = Journal.open(
            config.state_dir, config.limits.disk_reserve_bytes, config.job_logs_path
        )
    except DirectoryLockedError as error:
        raise DaemonError(f"{error}; stop it first") from error
    with contextlib.closing(journal):
        people = replay(journal.replay()).people
        if not people.imported:
            raise DaemonError(
                f"{config.state_dir} has no users yet: the first start of the coordinator imports "
                f"them from {config.tokens_path}"
            )
        known, drawn, at = people.users.get(user), draw(TokenClass.USER), SystemClock().now().wall
        teams = () if known is None else known.teams
        made = (UserAdded if known is None else UserChanged)(user, Role.ADMIN, teams)
        token = TokenCreated(drawn.id, TokenClass.USER, drawn.sha256, user, "--new-admin")
        journal.append([(made, at), (token, at)])
    sys.stdout.write(f"{drawn.text}\n")
    return 0


def _check(config: CoordinatorConfig) -> int:
    webhook_secret(config)
    ca_pem(config)
    enrolment_settings(config)
    if config.tls is not None:
        server_context(config.tls.cert, config.tls.key)
    with examined(config.state_dir, config.job_logs_path) as found:
        state = replay(found)
    imported(config, state)
    if config.job_logs.dir is not None and state.next_job > 1:
        refuse_unmounted(config.job_logs.dir)
    running = sum(1 for job in state.jobs.values() if job.current is not None)
    _say(
        _SERVE,
        f"ok: {config.state_dir} has {len(state.jobs) + found.archived} jobs, {running} of them "
        f"on nodes, and is in epoch {state.epoch}",
    )
    return 0


def _back_up(config: CoordinatorConfig, copy: Path) -> int:
    back_up(config.state_dir, copy, config.job_logs_path)
    with examined_copy(copy) as found:
        state = replay(found)
    _say(BACKUP, f"wrote {copy}: {len(state.jobs) + found.archived} jobs, epoch {state.epoch}")
    if config.bundles_path.is_dir():
        _say(BACKUP, f"the code of jobs is not in it: {config.bundles_path}, see operate.md")
    return 0


def _restore(config: CoordinatorConfig, copy: Path, *, go: bool) -> int:
    with examined_copy(copy) as found:
        state = replay(found)
    next_job = max(state.next_job, found.first_job)
    attempts = {
        job.id: {attempt.number: len(attempt.tasks) for attempt in job.attempts}
        for job in state.jobs.values()
        if job.ended_at is None
    }
    replaced = restore(
        config.state_dir,
        copy,
        next_job,
        config.job_logs_path,
        attempts,
        at=SystemClock().now().wall,
        go=go,
    )
    nodes = sorted({*state.awaited, *state.nodes, *replaced.later.nodes})
    ran = [str(job) for job in replaced.later.attempts]
    later = (
        f"later jobs, up to number {replaced.last_job} at most, are unknown; "
        if replaced.last_job >= next_job
        else ""
    )
    aside = (
        f"{config.state_dir} had no journal"
        if replaced.journal is None
        else f"the journal that was there is {replaced.journal}"
    )
    _say(
        RESTORE,
        f"restored {len(state.jobs) + found.archived} jobs, the last is {next_job - 1}; "
        f"{later}{aside}. Tasks that nodes have and this "
        "backup does not know are stopped when the coordinator starts"
        + _since(ran)
        + ("" if go or not nodes else _waits_for(nodes)),
    )
    return 0


def _go(config: CoordinatorConfig) -> int:
    """Declare every node lost for which a stopped coordinator would wait."""
    try:
        journal = Journal.open(
            config.state_dir, config.limits.disk_reserve_bytes, config.job_logs_path
        )
    except DirectoryLockedError as error:
        raise DaemonError(
            f"{error}; while the coordinator runs: muster node lost --awaited"
        ) from error
    with contextlib.closing(journal):
        nodes = sorted(replay(journal.replay()).awaited)
        at, user = SystemClock().now().wall, getpass.getuser()
        if nodes:
            journal.append([(NodeDeclaredLost(node, user), at) for node in nodes])
    _say(
        RESTORE,
        f"no job waits for {named(nodes)}: declared lost" if nodes else "no job waits for a node",
    )
    return 0


def _since(jobs: Sequence[str]) -> str:
    if not jobs:
        return ""
    one = len(jobs) == 1
    have, jobs_, they, are = ("has", "job", "it", "is") if one else ("have", "jobs", "they", "are")
    return (
        f". {jobs_.capitalize()} {named(jobs)} {have} run since the backup, and may have ended: "
        f"{they} will run again, unless {they} {are} cancelled while placing is held"
    )


def _waits_for(nodes: Sequence[str]) -> str:
    have = "1 node has" if len(nodes) == 1 else f"all {len(nodes)} nodes have"
    return (
        f". No job is placed until {have} said hello to it ({named(nodes)}); nodes that are gone: "
        "muster node lost NODE; without waiting: muster restore --go, before it is started"
    )


def _complain(verb: str, text: str, code: int) -> int:
    sys.stderr.write(f"muster {verb}: {' '.join(text.split())}\n")
    return code


def _say(verb: str, text: str) -> None:
    sys.stdout.write(f"muster {verb}: {text}\n")


def _raise_file_limit() -> None:
    """Raise the limit of open files: each agent connection is one, and the usual limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
