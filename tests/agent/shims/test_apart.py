"""Reports of a node that cannot keep jobs apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.shims import apart
from muster.daemon.errors import FileError

MOUNTS = """\
22 27 0:21 / /proc rw,nosuid shared:5 - proc proc rw
31 22 0:27 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
90 27 0:60 / /proc rw,nosuid,nodev,noexec - proc proc rw,hidepid={}
91 27 0:61 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize("value", ["2", "invisible", "4", "ptraceable"])
def test_a_mount_that_hides(value: str) -> None:
    assert apart.hides(MOUNTS.format(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        MOUNTS.format("0"),
        MOUNTS.format("off"),
        MOUNTS.format("1"),
        MOUNTS.format("2") + "92 90 0:21 / /proc rw - proc proc rw\n",
        "90 27 0:60 / /proc/2 rw - proc proc rw,hidepid=2\n",
        "90 27 0:60 / /proc rw,hidepid=2 - proc proc rw\n",
        "short\n",
    ],
)
def test_a_mount_that_hides_nothing(text: str) -> None:
    assert not apart.hides(text)


def test_machines_without_a_known_call_are_named() -> None:
    assert apart.why_keyrings_are_shared("x86_64") == ""
    assert "sparc64" in apart.why_keyrings_are_shared("sparc64")


def test_a_kernel_that_lacks_a_rule_of_the_fence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nft = tmp_path / apart.NFT
    nft.write_text(
        "#!/bin/sh\nif /bin/grep -q reject; then echo 'no such file: reject' >&2; exit 1; fi\n"
    )
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "no such file: reject" in apart.why_no_fence()


def test_a_node_without_nft_or_with_the_fence_off_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(apart, "why_nothing_hides", lambda: "ignored")
    monkeypatch.setattr(apart, "NFT", "no-such-program")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = apart.not_apart(AgentConfig())
    assert said == {
        apart.FENCE: "there is no no-such-program on this node",
        apart.HIDDEN: "ignored",
    }
    apart.check_hiding(AgentConfig())
    with pytest.raises(FileError, match="hide_processes: ignored; upgrade"):
        apart.check_hiding(AgentConfig(hide_processes=True))


def test_all_that_is_switched_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    off = {
        apart.FENCE: "it is switched off (`fence`)",
        apart.HIDDEN: "it is switched off (`hide_processes`)",
        apart.PLACES: "it is switched off (`private_tmp`)",
    }
    single = AgentConfig(fence=False, hide_processes=False, private_tmp=False)
    assert apart.not_apart(single) == off
    assert apart.not_apart(AgentConfig(run_as="trainer", single_team=True)) == off


def test_users_whose_jobs_run_as_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    said = apart.not_apart(AgentConfig(allow_root_jobs=True))
    assert said[apart.USERS].endswith("run as root (`allow_root_jobs`)")
    # The probe warns of that.
    assert apart.USERS not in apart.not_apart(AgentConfig(run_as="trainer"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = apart.not_apart(AgentConfig())
    assert list(said) == [apart.USERS]
    assert said[apart.USERS].endswith("run as uid 1000, because the agent is not root")
    assert apart.not_apart(AgentConfig(single_team=True)) == {}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_this_kernel_hides_and_nothing_of_the_try_stays() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    assert apart.why_nothing_hides() == ""
    assert Path("/proc/self/mountinfo").read_text() == before
