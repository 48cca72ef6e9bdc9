"""Promises of systemd/: the settings on which jobs and data depend, and that systemd reads them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.shims import systemd
from agent.single_agent import RUNTIME
from examples.local_cluster import MUSTER
from muster.cli.cluster.init import Cluster, ListenAt, cluster_files

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
UNITS = ("muster-coordinator", "muster-agent")
INSTALLED = "/opt/muster/bin/muster"
Settings = dict[str, dict[str, list[str]]]


def settings_of(path: Path) -> Settings:
    """The sections of a unit file; a name may be given more than once."""
    found: Settings = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(name, []).append(value)
    return found


def service_of(unit: str) -> dict[str, list[str]]:
    return settings_of(SYSTEMD / f"{unit}.service")["Service"]


BOTH = {
    "Type": "notify",
    "NotifyAccess": "main",
    "Restart": "always",
}
AGENT = {
    **BOTH,
    "KillMode": "process",  # jobs outlive it
    "OOMPolicy": "continue",  # nor does a job's end by memory end it
    "Delegate": "yes",
    "LimitMEMLOCK": "infinity",
    "TasksMax": "infinity",
    "StateDirectory": "muster/agent",
    "RuntimeDirectory": "muster",
    "RuntimeDirectoryMode": "0700",
    "RuntimeDirectoryPreserve": "yes",  # another agent may hold the lock in it
    "NoNewPrivileges": "yes",
    "UMask": "0077",
}
COORDINATOR = {
    **BOTH,
    "User": "muster",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictNamespaces": "yes",
    "StateDirectory": "muster/coordinator",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
}


@pytest.mark.parametrize(
    ("unit", "name", "value"),
    [
        *(("muster-agent", *item) for item in AGENT.items()),
        *(("muster-coordinator", *item) for item in COORDINATOR.items()),
    ],
)
def test_promised_settings_are_present(unit: str, name: str, value: str) -> None:
    assert service_of(unit)[name] == [value]


@pytest.mark.parametrize("unit", UNITS)
def test_a_daemon_is_restarted_for_ever_and_not_at_once(unit: str) -> None:
    whole = settings_of(SYSTEMD / f"{unit}.service")
    assert whole["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert int(whole["Service"]["RestartSec"][0]) >= 1
    slower = settings_of(SYSTEMD / "back-off.conf")["Service"]
    assert int(slower["RestartMaxDelaySec"][0]) <= 60


def test_the_unit_makes_the_folder_of_the_agents_claim() -> None:
    assert service_of("muster-agent")["RuntimeDirectory"] == [str(RUNTIME.relative_to("/run"))]


@pytest.mark.parametrize("unit", UNITS)
def test_limits(unit: str) -> None:
    service = service_of(unit)
    assert int(service["LimitNOFILE"][0]) >= 131072
    assert int(service["WatchdogSec"][0]) > 0
    assert -1000 < int(service["OOMScoreAdjust"][0]) < 0


# Settings that the drop-in for forked shims resets: jobs inherit them, and some jobs break.
LOOSE = {
    "NoNewPrivileges": ["no"],
    "LockPersonality": ["no"],
    "PrivateMounts": ["no"],
    "ProtectHostname": ["no"],
    "ProtectKernelModules": ["no"],
    "ProtectSystem": ["no"],
    "RestrictAddressFamilies": [""],
    "RestrictNamespaces": ["no"],
    "RestrictRealtime": ["no"],
    "RestrictSUIDSGID": ["no"],
    "SystemCallArchitectures": [""],
    "SystemCallFilter": [""],
    "UMask": ["0022"],
}
# Settings that concern the agent itself, or units of tasks as well.
NO_SANDBOX = re.compile(
    "Type|NotifyAccess|ExecStart|Kill.*|OOM.*|Delegate|StateDir.*|RuntimeDir.*|Limit.*|TasksMax|"
    "Restart|RestartSec|WatchdogSec|Timeout.*|SystemCallErrorNumber|CapabilityBoundingSet"
)
# Each of these breaks the agent: devices of GPUs and the kernel's log, the jobs' own folders, their
# processes.
BROKEN_BY = (
    "DevicePolicy",
    "PrivateDevices",
    "PrivateTmp",
    "PrivateUsers",
    "ProtectClock",  # it closes the devices too
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelTunables",  # in systemd-nspawn it hides the boot id
    "ProtectProc",
    "User",
)


def test_the_drop_in_for_forked_shims_takes_the_whole_sandbox_away() -> None:
    loose = settings_of(SYSTEMD / "forked-shims.conf")["Service"]
    assert {name for name in service_of("muster-agent") if not NO_SANDBOX.fullmatch(name)} == set(
        LOOSE
    )
    assert {name: loose[name] for name in LOOSE} == LOOSE
    assert loose["Environment"] == ["MUSTER_AGENT_SHIMS=forked"]


@pytest.mark.parametrize("name", BROKEN_BY)
def test_the_agent_has_no_sandbox_in_which_it_cannot_work(name: str) -> None:
    assert name not in service_of("muster-agent")


def test_forked_jobs_keep_what_nvidia_modprobe_and_namespaces_need() -> None:
    whole, dropped = settings_of(SYSTEMD / "forked-shims.conf")["Service"]["CapabilityBoundingSet"]
    assert whole == "~"
    assert dropped == f"~{systemd.DROPPED}"
    kept = {"CAP_SYS_MODULE", "CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_IPC_LOCK", "CAP_SYS_RESOURCE"}
    kept |= {"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_SYS_PTRACE", "CAP_SYSLOG"}
    assert not kept & set(dropped.removeprefix("~").split())


@pytest.mark.parametrize("unit", UNITS)
def test_they_run_what_muster_init_writes(unit: str, tmp_path: Path) -> None:
    etc, state = Path("/etc/muster"), Path("/var/lib/muster")
    cluster = Cluster(
        etc,
        state,
        ListenAt("127.0.0.1", 7077),
        "http://127.0.0.1:7077",
        None,
        "ada",
        tmp_path / "c",
    )
    files = {file.path: file for file in cluster_files(cluster)}
    verb = unit.removeprefix("muster-")
    service = service_of(unit)
    [command] = service["ExecStart"]
    program, given, option, config = command.split()
    assert (program, given, option) == (INSTALLED, verb, "--config")
    written = files[Path(config)]
    assert f'state_dir: "/var/lib/{service["StateDirectory"][0]}"' in written.text
    # The coordinator's user gets the one secret that root wrote for it, and the way there.
    rules = [line.split() for line in _lines("tmpfiles.d")]
    assert ["d", str(etc), "0755", "root", "root", "-"] in rules
    tokens = files[etc / "tokens.yaml"]
    assert ["z", str(tokens.path), f"{tokens.mode:04o}", "muster", "muster", "-"] in rules


def test_the_user_of_the_coordinator_is_made() -> None:
    [line] = _lines("sysusers.d")
    kind, name, *_ = line.split()
    assert (kind, name) == ("u", service_of("muster-coordinator")["User"][0])


def test_the_page_on_installing_names_every_file() -> None:
    page = (SYSTEMD.parent / "docs/how-to/install.md").read_text()
    for path in SYSTEMD.rglob("*"):
        if path.is_file():
            assert f"systemd/{path.relative_to(SYSTEMD)}" in page
    assert INSTALLED.removesuffix("/bin/muster") in page


def _lines(folder: str) -> list[str]:
    text = (SYSTEMD / folder / "muster.conf").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (package systemd)")
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Make the units as installed on a machine, with the paths of this tree."""
    for unit in UNITS:
        text = (SYSTEMD / f"{unit}.service").read_text()
        (tmp_path / f"{unit}.service").write_text(text.replace(INSTALLED, MUSTER))
    return tmp_path


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_no_complaint(unit: str, installed: Path) -> None:
    argv = [tool("systemd-analyze"), "verify", "--man=no", str(installed / f"{unit}.service")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()}")
    mine = [line for line in done.stderr.splitlines() if "muster" in line]
    assert (mine, done.returncode) == ([], 0), done.stderr


@pytest.mark.parametrize(("name", "most"), [("muster-agent", 5.6), ("muster-coordinator", 2.0)])
def test_the_exposure_of_a_unit(name: str, most: float, installed: Path) -> None:
    unit = installed / f"{name}.service"
    argv = [tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot judge here: {done.stderr.strip()}")
    assert float(found[1]) <= most


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser")
def test_the_user_and_the_folders_can_be_made(tmp_path: Path) -> None:
    users, folders = tool("systemd-sysusers"), tool("systemd-tmpfiles")
    (tmp_path / "etc" / "muster").mkdir(parents=True, mode=0o700)
    tokens = tmp_path / "etc" / "muster" / "tokens.yaml"
    tokens.touch(0o600)
    for program, folder in ((users, "sysusers.d"), (folders, "tmpfiles.d")):
        copy = tmp_path / "usr" / "lib" / folder
        copy.mkdir(parents=True)
        shutil.copy(SYSTEMD / folder / "muster.conf", copy)
        create = ["--create"] if program == folders else []
        subprocess.run([program, *create, f"--root={tmp_path}", "muster.conf"], check=True)
    assert tokens.stat().st_uid != 0
    assert (tmp_path / "etc" / "muster").stat().st_mode & 0o777 == 0o755
    assert f":{tokens.stat().st_uid}:" in (tmp_path / "etc" / "passwd").read_text()
