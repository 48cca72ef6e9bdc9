"""`python -m orchestrator --config FILE`: the coordinator as a process.

Exit codes: 0 after SIGTERM or SIGINT, 2 for a configuration that cannot be used, 1 for the rest.
"""

import argparse
import asyncio
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from muster.daemon import logging as daemon_logging
from muster.daemon.errors import ConfigError, DaemonError, TaskEndedError, TlsError
from orchestrator.config import load
from orchestrator.core.decide import VERSION
from orchestrator.serve import serve

_log = structlog.get_logger("muster.coordinator")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="muster coordinator", description="The coordinator of a Muster cluster."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (YAML)")
    parser.add_argument("--version", action="version", version=f"muster {VERSION}")
    arguments = parser.parse_args(argv)
    try:
        config = load(file=arguments.config, environ=os.environ)
        daemon_logging.configure(level=config.log.level, fmt=config.log.format)
        _raise_file_limit()
        asyncio.run(serve(config))
    except (ConfigError, TlsError) as error:
        print(f"muster coordinator: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 2
    except TaskEndedError as error:
        # What is in memory is no longer to be trusted: end now, and begin anew from the disk.
        _log.critical("coordinator_failed", why=str(error), exc_info=error.__cause__)
        sys.stderr.flush()
        os._exit(1)
    except DaemonError as error:
        print(f"muster coordinator: {error}", file=sys.stderr)  # noqa: T201 - for the operator
        return 1
    return 0


def _raise_file_limit() -> None:
    """A connection of an agent is a descriptor, and the usual soft limit of 1024 is soon met."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
