"""The folder of job logs, which may be on a disk of its own.

The disk may not be mounted yet when the coordinator starts. It then finds an empty mount point and
would store logs there again, below the mount. A file distinguishes the folder from a mount point.
"""

from pathlib import Path
from typing import Final

from muster.daemon.errors import FileError

MARK: Final = "muster-job-logs"


def make_folder(path: Path) -> None:
    """Create the private folder and its mark. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (path / MARK).touch(mode=0o600)


def refuse_unmounted(path: Path) -> None:
    """Refuse a folder without the mark, after jobs have run. Raises FileError and OSError."""
    mark = path / MARK
    if not mark.exists():
        raise FileError(
            f"{path} (job_logs.dir) is not the folder that held the logs of earlier jobs: {mark} "
            "is missing. Mount its disk, then start again. If these logs are lost, go on without "
            f"them: mkdir -p {path} && touch {mark}"
        )
