"""Commands on the journal of a coordinator that is stopped, in the process of the test."""

import contextlib
import io
from pathlib import Path
from unittest import mock

from orchestrator.__main__ import main


def command(folder: Path, *words: str) -> tuple[int, str]:
    """`muster WORDS` for the coordinator of `folder/state`; its exit code and its output. The word
    BACKUP stands for `folder/backup`."""
    config = folder / "config.yaml"
    config.write_text(f"state_dir: {folder}/state\ntokens_file: {folder}/tokens\n")
    said = io.StringIO()
    given = [str(folder / "backup") if word == "BACKUP" else word for word in words]
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        mock.patch("orchestrator.__main__.prepare_process_env"),
    ):
        code = main([*given, "--config", str(config)])
    return code, said.getvalue()
