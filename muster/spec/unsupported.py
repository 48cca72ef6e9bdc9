"""Keys of the job format that this release does not support yet.

Such a key is refused and never ignored, because running a job without it would be worse than not
starting the job. Each entry names an alternative. When a feature arrives, its line is removed here.
"""

from __future__ import annotations

from typing import Final

# Section path -> key -> alternative.
LATER_KEYS: Final = {
    "": {
        "after": "submit the second job once `muster wait ID` has returned 0",
        "file_mounts": "put the files on storage that every node mounts, and use that path",
        "image": "jobs run directly on the node: name an interpreter or environment in `python`",
        "outputs": "write results to storage that every node mounts",
        "prepare": "use `setup`, which runs once per node and attempt",
        "secrets": "keep the secret in a file that only you can read on the nodes, and name the "
        "file in `env`; `env` itself is not secret",
        "ship": "leave it out: a relative `workdir` is sent to the nodes, an absolute one exists "
        "there",
        "user": "leave it out; the agent's configuration decides as whom jobs run",
    },
}


def not_yet(what: str) -> str:
    """Return the refusal of `what` (a key in backticks, or text)."""
    return f"{what} is not supported yet by this release"
