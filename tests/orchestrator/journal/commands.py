"""Commands on the journal of a coordinator that is stopped, in the process of the test."""

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from orchestrator.__main__ import main


def command(folder: Path, *words: str) -> tuple[int, str]:
    """`muster WORDS` for the coordinator of `folder/state`; its exit code and its output. The word
    BACKUP stands for `folder/backup`."""
    config = folder / "config.yaml"
    config.write_text(f"state_dir: {folder}/state\ntokens_file: {folder}/tokens\n")
    given = [str(folder / "backup") if word == "BACKUP" else word for word in words]
    return in_this_process(*given, "--config", str(config))


def in_this_process(*argv: str) -> tuple[int, str]:
    """Run the coordinator's program with these arguments; return its exit code and its output."""
    output = io.StringIO()
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            mock.patch("orchestrator.__main__.prepare_process_env"),
        ):
            code = main(argv)
    finally:
        os.umask(umask)
    return code, output.getvalue()
