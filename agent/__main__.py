"""`python -m agent --config FILE`: the agent of this node, until SIGTERM.

`python -m agent probe` and `python -m agent doctor` examine the node and exit.
"""

from __future__ import annotations

import muster.daemon.fast_imports  # noqa: F401  before whatever imports aiohttp

# isort: split
import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agent import join
from agent.config import AgentConfig, load, written
from agent.probe.fabric import command
from muster.daemon.errors import ConfigError, DaemonError, TlsError
from muster.daemon.logging import configure
from muster.daemon.process_env import prepare_process_env

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
# A fixed PATH: root must not run programs from a directory that a user can write.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent and return the exit code: 0 stopped, 1 failed, 2 invalid configuration."""
    prepare_process_env()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] == join.VERB:
        try:
            return join.main(given[1:])
        except KeyboardInterrupt:
            return 130
    if given and given[0] in command.VERBS:
        try:
            return command.main(given[0], given[1:])
        except KeyboardInterrupt:
            return 130
    parser = argparse.ArgumentParser(
        prog="muster agent", description="Runs this node's part of jobs, until SIGTERM."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML, see configs/agent.yaml")
    flags = parser.parse_args(given)
    try:
        config = load(file=flags.config, environ=os.environ)
        own = written(file=flags.config, environ=os.environ)
        configure(level=config.log.level, fmt=config.log.format)
        os.environ["PATH"] = _PATH
        os.umask(0o077)
        asyncio.run(_serve(config, own))
    except (ConfigError, TlsError) as error:
        return _complain(error, EXIT_USAGE)
    except DaemonError as error:
        return _complain(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(config: AgentConfig, own: Mapping[str, str]) -> None:
    # Imported late, so that a configuration error is reported at once.
    from agent.daemon import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(config, stop, own=own)


def _complain(error: Exception, code: int) -> int:
    sys.stderr.write(f"muster agent: {' '.join(str(error).split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
