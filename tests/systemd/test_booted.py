"""The shipped units under a real systemd, and tasks as units of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.shims.limits import (
    COMMON_DEVICES,
    SHIM_BYTES,
    SHIM_TASKS,
    TaskLimits,
    properties_of,
)
from tests.systemd.container import TREE, Container, booted, wait_long
from tests.systemd.test_units import LOOSE, settings_of

pytestmark = [pytest.mark.long, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]

# The account that runs the jobs.
USER = "trainer"
# Writes its pid, and ends when released, or with 3 after SIGTERM.
PROGRAM = """
trap 'echo $$ > /tmp/$0.asked; exit 3' TERM
echo $$ > /tmp/$0.new && mv /tmp/$0.new /tmp/$0.pid
while [ ! -e /tmp/$0.go ]; do sleep 0.1; done
exit 7
"""
# Ignores SIGTERM, and so does what it leaves behind in a session of its own.
STUBBORN = """
trap '' TERM
setsid sh -c 'sleep 10000 & sleep 10000' &
echo $$ > /tmp/$0.new && mv /tmp/$0.new /tmp/$0.pid
sleep 10000
"""


# The work of the agent for jobs, as root, with files and processes of USER.
WORK = """
import os, pwd, socket, subprocess, sys, tempfile, threading
from pathlib import Path
from agent.monitors.hangs.sock_diag import connections
from agent.hostsfile.editor import HostsFile
from agent.probe.host import boot_id
from agent.probe.network import NetworkProbe
from agent.shim.system.syscalls import bind_privately
from muster.protocol.hosts_file import with_block, without_blocks

status = Path("/proc/self/status").read_text()
assert "NoNewPrivs:\\t1" in status and "Seccomp:\\t2" in status, status
hosts, folder = Path("/etc/hosts"), Path("/var/lib/muster/agent")
before = hosts.read_bytes()
file = HostsFile(hosts, folder / "hosts.before")
inode = hosts.stat().st_ino
file.update(lambda text: with_block(text, "9.1", [("peer-9", "10.9.9.9")]))
assert socket.gethostbyname("peer-9") == "10.9.9.9"
assert hosts.stat().st_ino != inode, "it was written in place"
file.update(lambda text: without_blocks(text, ()))
assert hosts.read_bytes() == before
mine = folder / "mine"
mine.write_text("10.9.9.8 peer-8\\n")
found = []
def private():
    bind_privately(str(mine), str(hosts))
    found.append(socket.gethostbyname("peer-8"))
thread = threading.Thread(target=private)
thread.start()
thread.join()
assert found == ["10.9.9.8"], found
mine.unlink()
if os.path.exists("/dev/kmsg"):
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
assert boot_id() == sys.argv[2]
assert NetworkProbe(None, None).interfaces()
assert connections() is not None
assert os.listdir("/sys/class/net")
user = pwd.getpwnam(sys.argv[1])
as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
# Its environment appears a moment after its name does.
started = lambda: (proc / "comm").read_text() == "sleep\\n" and (proc / "environ").read_bytes()
with subprocess.Popen([*as_user, "sleep", "60"], env={"A": "1"}) as process:
    proc = Path(f"/proc/{process.pid}")
    try:
        while not started():
            assert process.poll() is None
        assert started() == b"A=1\\0"
    finally:
        process.kill()
home = Path(tempfile.mkdtemp(dir=user.pw_dir))
os.chown(home, user.pw_uid, user.pw_gid)
home.rmdir()
subprocess.run(["systemctl", "list-units", "muster-task-*"], check=True, stdout=subprocess.DEVNULL)
"""


class Machine:
    """The container, its daemons and their jobs."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.run, self.said, self.muster = container.run, container.said, container.muster
        self.submitted: list[str] = []

    def submit(self, name: str, program: str = PROGRAM) -> str:
        """A job that runs, as the coordinator knows; returns its id."""
        job = self.muster("submit", "--name", name, "--", "sh", "-c", program, name).stdout.strip()
        self.submitted.append(job)
        wait_long(lambda: self.state(job) == "running", f"job {job} runs")
        wait_long(lambda: self.pid(name) != "", f"job {job} tells its pid")
        return job

    def state(self, job: str) -> str:
        return str(json.loads(self.muster("show", "--json", job).stdout)["state"]).lower()

    def pid(self, name: str) -> str:
        return self.run("cat", f"/tmp/{name}.pid", check=False).stdout.strip()

    def start_time(self, pid: str) -> str:
        """Return the start time of a process, or "": together with its pid it is unique."""
        text = self.run("cat", f"/proc/{pid}/stat", check=False).stdout
        return text.rpartition(")")[2].split()[19] if text else ""

    def cgroup(self, pid: str) -> str:
        return self.said("cat", f"/proc/{pid}/cgroup").splitlines()[-1].removeprefix("0::")

    def sandbox(self, pid: str) -> list[str]:
        """Return the limits of a process: privileges, system calls, its view of the file
        systems."""
        status = self.said("grep", "-E", "^(NoNewPrivs|Seccomp):", f"/proc/{pid}/status")
        return [*status.splitlines(), self.said("readlink", f"/proc/{pid}/ns/mnt")]

    def let_go(self, name: str) -> None:
        self.run("touch", f"/tmp/{name}.go")

    def wait(self, job: str) -> int:
        return self.muster("wait", "--timeout", "300s", job, check=False).returncode

    def show(self, unit: str, name: str) -> str:
        return self.said("systemctl", "show", f"--property={name}", "--value", unit)

    def units(self) -> list[str]:
        listing = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "muster-task-*"]
        return [line.split()[0] for line in self.said(*listing).splitlines()]

    def serving(self) -> None:
        """Wait until the agent is back."""

        def connected() -> bool:
            done = self.muster("nodes", "--json", check=False)
            return done.returncode == 0 and '"connected"' in done.stdout.lower()

        wait_long(connected, "the agent is connected")

    def nothing_left(self) -> None:
        """Check that nothing of any job is left."""
        wait_long(lambda: self.units() == [], "the units of tasks are gone")
        tasks = "find /sys/fs/cgroup -name 'muster-task-*'; ls /var/lib/muster/agent/tasks"
        wait_long(lambda: self.said("sh", "-c", tasks) == "", "cgroups and folders are gone")
        uid = self.said("id", "-u", USER)
        of_user = f"grep -l '^Uid:\t{uid}\t' /proc/[0-9]*/status 2>/dev/null || true"
        assert self.said("sh", "-c", of_user) == ""


def documented(settings: str = rf"run_as: {USER}\ngpus: 0\n") -> list[str]:
    """The commands by hand of docs/how-to/install.md, with settings of the agent."""
    text = (TREE / "docs/how-to/install.md").read_text()
    text = text.partition("## By hand: the coordinator's machine")[2]
    coordinator, node, *_ = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].rstrip() for line in (coordinator + node).splitlines()]
    found = [line for line in lines if "/path/to" not in line]
    init = "/opt/muster/bin/muster init --dir /etc/muster"
    assert f"{init} ..." in found
    settings = rf"address: 127.0.0.1\n{settings}"
    return [
        f"{init} --user {USER} && printf '{settings}' >> /etc/muster/agent.yaml"
        if line.startswith(init)
        else line
        for line in found
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder: Path = tmp_path_factory.mktemp("booted")
    with booted(folder) as container:
        container.run("useradd", "--create-home", USER)
        for command in documented():
            container.run("sh", "-ec", f"cd /opt/tree && {command}")
        machine = Machine(container)
        machine.serving()
        try:
            yield machine
        finally:
            units = ("--unit=muster-agent", "--unit=muster-coordinator", "--unit=muster-task-*")
            print(container.run("journalctl", "--no-pager", *units, check=False).stdout)


@pytest.fixture
def machine(whole: Machine) -> Iterator[Machine]:
    """The same for all; a test that failed leaves it no job."""
    yield whole
    while whole.submitted:
        whole.muster("cancel", "--grace", "1s", whole.submitted.pop(), check=False)


def test_a_task_is_a_unit_of_its_own(machine: Machine) -> None:
    job = machine.submit("own")
    unit = f"muster-task-{job}-1-0.service"
    assert machine.units() == [unit]
    assert machine.cgroup(machine.pid("own")).startswith(f"/muster.slice/{unit}/muster/shim-")
    assert machine.cgroup(machine.show(unit, "MainPID")) == f"/muster.slice/{unit}/shim"
    assert machine.show(unit, "CollectMode") == "inactive-or-failed"
    assert machine.show(unit, "OOMPolicy") == "continue"
    agent = machine.show("muster-agent", "MainPID")
    assert machine.sandbox(machine.pid("own")) == machine.sandbox("1") != machine.sandbox(agent)
    for relation in ("Requires", "BindsTo", "PartOf", "Wants", "After"):
        assert "muster-agent" not in machine.show(unit, relation)
    machine.let_go("own")
    assert machine.wait(job) == 7
    machine.nothing_left()


def test_systemd_accepts_the_limits_of_a_part(machine: Machine) -> None:
    """It keeps them even where no controller enforces them, as in this container."""
    limits = TaskLimits(1 << 30, 25, ("/dev/nvidia0 rw", *COMMON_DEVICES))
    properties = [f"--property={it}" for it in properties_of(limits, 1000)]
    machine.run("systemd-run", "--quiet", "--unit=limited", *properties, "sleep", "1000")
    try:
        assert machine.show("limited", "MemoryMax") == str((1 << 30) + SHIM_BYTES)
        assert machine.show("limited", "TasksMax") == str(1000 + SHIM_TASKS)
        assert machine.show("limited", "CPUWeight") == "25"
        assert machine.show("limited", "DevicePolicy") == "closed"
        shown = machine.show("limited", "DeviceAllow").splitlines()
        assert sorted(shown) == sorted(limits.devices or ())
    finally:
        machine.run("systemctl", "stop", "limited")


def test_limits_that_a_container_does_not_enforce_are_named(machine: Machine) -> None:
    (node,) = json.loads(machine.muster("nodes", "--json").stdout)["nodes"]
    assert "a container" in node["unenforced"]["devices"]
    said = " ".join(machine.muster("doctor", check=False).stdout.split())
    for what in node["unenforced"]:
        assert f"{what}: not enforced here" in said


def test_a_job_notices_nothing_of_its_daemons(machine: Machine) -> None:
    job = machine.submit("outlives")
    pid = machine.pid("outlives")
    began = machine.start_time(pid)
    # All that is in the agent's unit, which systemd starts again.
    machine.run("systemctl", "kill", "--signal=KILL", "muster-agent")
    machine.run("systemctl", "restart", "muster-coordinator")
    machine.serving()
    assert machine.state(job) == "running"
    machine.run("systemctl", "stop", "muster-agent")
    assert machine.start_time(pid) == began
    machine.run("systemctl", "start", "muster-agent")
    machine.serving()
    assert (machine.pid("outlives"), machine.start_time(pid)) == (pid, began)
    machine.let_go("outlives")
    assert machine.wait(job) == 7
    machine.nothing_left()


def test_the_sandbox_of_the_agent_leaves_it_what_it_does_for_jobs(machine: Machine) -> None:
    unit = settings_of(TREE / "systemd" / "muster-agent.service")["Service"]
    names = (*LOOSE, "CapabilityBoundingSet", "SystemCallErrorNumber")
    lines = [f"{name}={value}" for name in names for value in unit[name]]
    boot = machine.said("cat", "/proc/sys/kernel/random/boot_id")
    run = f"ExecStart=/opt/muster/bin/python3 /run/work.py {USER} {boot}"
    machine.run("sh", "-c", "[ -e /etc/hosts ] || echo 127.0.0.1 localhost > /etc/hosts")
    service = ["[Service]", "Type=oneshot", "StandardError=file:/run/work.err", run, *lines]
    for name, text in (("work.py", WORK), ("systemd/system/work.service", "\n".join(service))):
        machine.run("sh", "-c", f'printf %s "$0" > /run/{name}', text)
    machine.run("systemctl", "daemon-reload")
    try:
        done = machine.run("systemctl", "start", "work.service", check=False)
    finally:
        machine.run("systemctl", "stop", "work.service")
    assert done.returncode == 0, machine.said("cat", "/run/work.err") + done.stderr


def test_a_cancel_empties_the_unit(machine: Machine) -> None:
    job = machine.submit("stubborn", STUBBORN)
    machine.muster("cancel", "--grace", "1s", job)
    machine.wait(job)
    machine.nothing_left()


def test_remains_of_a_killed_shim_are_ended(machine: Machine) -> None:
    job = machine.submit("orphan", STUBBORN)
    shim = machine.show(f"muster-task-{job}-1-0", "MainPID")
    machine.run("sh", "-c", f"kill -KILL {shim}")
    text = "the process that supervises the ranks"
    wait_long(lambda: text in machine.muster("show", job).stdout, "the cause is shown")
    machine.muster("cancel", job)
    machine.nothing_left()


def test_stopping_the_slice_ends_jobs_with_their_own_signal(machine: Machine) -> None:
    job = machine.submit("stopped")
    began = machine.start_time(machine.pid("stopped"))
    machine.run("systemctl", "stop", "muster.slice")
    assert machine.said("cat", "/tmp/stopped.asked") == machine.pid("stopped")
    assert machine.start_time(machine.pid("stopped")) != began
    text = "ended its part of the job by itself"
    wait_long(lambda: text in machine.muster("show", job).stdout, "the end is shown")
    machine.muster("cancel", job)
    machine.nothing_left()


def test_a_unit_whose_folder_is_gone_is_named_and_ended(machine: Machine) -> None:
    job = machine.submit("forgotten")
    unit = f"muster-task-{job}-1-0.service"
    pid = machine.pid("forgotten")
    machine.run("systemctl", "stop", "muster-agent")
    machine.run("mv", f"/var/lib/muster/agent/tasks/{job}.1.0", "/var/lib/muster/taken")
    assert f"{unit} (of " in machine.muster("doctor", check=False).stdout
    machine.run("systemctl", "start", "muster-agent")
    assert machine.start_time(pid) == ""
    assert machine.units() == []
    machine.serving()
    machine.muster("cancel", job, check=False)
    machine.nothing_left()


def test_forked_shims_outlive_the_agent_in_its_unit(machine: Machine) -> None:
    folder = "/run/systemd/system/muster-agent.service.d"
    setting = f"mkdir {folder} && cp /opt/tree/systemd/forked-shims.conf {folder}"
    machine.run("sh", "-ec", f"{setting} && systemctl daemon-reload")
    machine.run("systemctl", "restart", "muster-agent")
    machine.serving()
    job = machine.submit("forked")
    pid = machine.pid("forked")
    began = machine.start_time(pid)
    assert machine.units() == []
    assert machine.cgroup(pid).startswith("/system.slice/muster-agent.service/muster/shim-")
    assert machine.sandbox(pid) == machine.sandbox("1")
    machine.run("systemctl", "stop", "muster-agent")
    assert machine.start_time(pid) == began
    # The next agent makes units, and takes over what was forked.
    machine.run("sh", "-ec", f"rm -r {folder} && systemctl daemon-reload")
    machine.run("systemctl", "start", "muster-agent")
    machine.serving()
    assert machine.start_time(pid) == began
    machine.let_go("forked")
    assert machine.wait(job) == 7
    machine.nothing_left()
