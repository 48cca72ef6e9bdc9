"""Generator of the README's terminal picture: real commands against a real cluster, as SVG.

The cluster's directory is shown as /shared; nothing else is changed.

    python -m tools.docs.terminal_picture docs/terminal.svg
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.local_cluster import LocalCluster

COLUMNS = 100
PI = Path(__file__).parents[2] / "examples" / "pi"
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="muster-picture-") as folder,
        LocalCluster(Path(folder), agents=3) as cluster,
    ):
        Path(sys.argv[1]).write_text(svg(recorded(cluster)))


def recorded(cluster: LocalCluster) -> str:
    """Return a short session, with the terminal's output."""
    shutil.copytree(PI, cluster.root / "pi")
    commands = (
        "submit -f pi/job.yaml --set workdir=/shared/pi",
        "submit --nodes 2 --name count -- ls /shared",
        "ps",
        "explain count",
        "logs -f pi",
        "show pi",
    )
    return "".join(typed(cluster, command) for command in commands)


def typed(cluster: LocalCluster, command: str) -> str:
    """Return a command at a terminal, with its prompt."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    process = subprocess.Popen(
        cluster.command(*command.replace("/shared", str(cluster.root)).split()),
        cwd=cluster.root,
        env={**cluster.base_env(), "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        written += data
    os.close(ours)
    process.wait()
    shown = written.decode().replace("\r", "").replace(str(cluster.root), "/shared")
    return f"$ \x1b[1mmuster {command}\x1b[0m\n{shown}\n"


def svg(session: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(session.strip()))
    # Use the reader's own monospaced font, so that the picture loads nothing.
    return _FONTS.sub("", console.export_svg(title="muster"))


if __name__ == "__main__":
    main()
