"""The hang watch's reading of processes, from folders like those of /proc."""

from __future__ import annotations

from pathlib import Path

from agent.monitors.hangs.procfs import DESCRIPTORS_MAX, Processes


def test_a_job_with_very_many_descriptors_holds_up_no_other(tmp_path: Path) -> None:
    """A job with too many descriptors is skipped, because the hang watch polls all jobs in turn."""
    for pid, number in ((1, DESCRIPTORS_MAX), (2, DESCRIPTORS_MAX - 1)):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        for fd in range(number):
            (folder / str(fd)).symlink_to("/dev/null")
        (folder / str(number)).symlink_to("socket:[77]")
    processes = Processes(tmp_path)
    assert processes.sockets([1]) is None
    assert processes.sockets([2]) == frozenset({77})
    assert processes.sockets([2, 1]) is None
