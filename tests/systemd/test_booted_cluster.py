"""A cluster from nothing by the printed lines, on booted machines, and those who want its names."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator

import pytest

from muster.wheels.fill import NoWheelsError, fill
from tests.systemd.container import TREE, wait_long
from tests.systemd.machines import Machine, address, machines

pytestmark = [pytest.mark.long, pytest.mark.root, pytest.mark.timeout(900, func_only=True)]

PAGE = TREE / "docs/how-to/install.md"
INSTALL, UP = "First install Muster there", "Then one step, as root:"
"""Words of the page that stand before the blocks of commands which the machines run."""
USER = "trainer"
NODES = ("gpu-01", "gpu-02", "gpu-03")
# Reaches the coordinator, but no other machine.
ALONE = "gpu-03"
# An environment for jobs, as the page's `--python` names it. The agent looks whether it has torch.
TRAINING = """\
python3 -m venv --without-pip /opt/training
cd /opt/training/lib/python3*/site-packages
mkdir torch && touch torch/__init__.py"""
# What a person has on the laptop alone. A rank uses the shipped module, and the ranks talk.
PROJECT = {
    "job.yaml": """\
nodes: 2
launcher: processes
run: train.py --steps 3
placement: {include: [gpu-01, gpu-02]}
""",
    "train.py": """\
import os, socket, sys
from model.layers import step

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
mine = step(rank + 1) * int(sys.argv[2])
if rank == 0:
    with socket.create_server(address, backlog=size) as server:
        total, hosts = mine, [socket.gethostname()]
        for _ in range(size - 1):
            with server.accept()[0] as other:
                number, host = other.makefile().read().split()
                total, hosts = total + int(number), [*hosts, host]
    print("trained on", *sorted(hosts), "to", total)
else:
    while True:
        try:
            with socket.create_connection(address) as first:
                first.sendall(f"{mine} {socket.gethostname()}".encode())
            break
        except ConnectionRefusedError:
            pass
""",
    "model/layers.py": "def step(x):\n    return 10 * x\n",
}
CERTIFICATE = "/var/lib/muster/agent/node.pem"
CONFIG = "/etc/muster/coordinator.yaml"
# No node is away for as long, however busy this machine is.
LONG_S = 36_000
TWICE = "renewed twice"
# pip looks in a folder, as there is no internet in the machines.
PIP = "export PIP_NO_INDEX=1 PIP_FIND_LINKS=/mnt/wheels"


class Site:
    """The machines of a cluster, one that no operator has accepted, and one of a person."""

    def __init__(self, found: dict[str, Machine]) -> None:
        self.machines = found
        self.head = found["head"]
        self.thief = found["thief"]
        self.laptop = found["laptop"]
        self.printed = ""
        """The lines that `muster up` has printed."""

    def muster(self, words: str, check: bool = True) -> str:
        done = self.head.sh(f"muster {words}", check=check)
        return done.stdout + done.stderr

    def line(self) -> str:
        """Return the printed line for a node, with a secret of its own."""
        return install_line(self.muster("token create --join"))

    def links(self) -> dict[str, str]:
        nodes = json.loads(self.head.sh("muster nodes --json").stdout)["nodes"]
        return {node["name"]: str(node["link"]).lower() for node in nodes}

    def state(self, node: str) -> str:
        """Return the line of a node in `muster nodes`, with its warnings."""
        text = " ".join(self.muster("nodes").split())
        found = re.search(rf"{node} .*?(?=gpu-\d\d (?:connected|suspect|lost|offline)|$)", text)
        assert found is not None, text
        return found[0]

    def connected(self, node: str) -> None:
        wait_long(lambda: self.links().get(node) == "connected", f"{node} is connected")

    def cut(self, node: str) -> None:
        wait_long(lambda: self.links().get(node) != "connected", f"{node} is cut off")

    def certificate(self, node: str) -> str:
        return self.machines[node].sh(f"sha256sum {CERTIFICATE}").stdout

    def submit(self, node: str, program: str) -> str:
        where = f"--set 'placement.include=[{node}]'"
        command = f"muster submit {where} -- sh -c '{program}'"
        return self.head.sh(command).stdout.strip()

    def ended(self, job: str) -> int:
        return self.head.sh(f"muster wait --timeout 300s {job}", False).returncode

    def lifetime(self, seconds: int, *nodes: str) -> None:
        """Let certificates be good for so long, and these nodes join again for such a one."""
        change = f's/"certificate_s": [0-9]*/"certificate_s": {seconds}/'
        self.head.sh(f"sed -i '{change}' {CONFIG} && systemctl restart muster-coordinator")
        for node in nodes:
            before = self.certificate(node)
            self.machines[node].sh(self.line())
            assert self.certificate(node) != before
            self.connected(node)


def install_line(printed: str) -> str:
    found = re.search(r"curl .* sh -s -- .*$", printed, re.MULTILINE)
    assert found is not None, printed
    return found[0]


def commands(words: str) -> str:
    """Return the commands of the first block of the page after a line with these words."""
    _, found, rest = PAGE.read_text().partition(words)
    block = re.search(r"^```\n(.*?)^```$", rest, re.DOTALL | re.MULTILINE)
    assert found, f"{PAGE} has no {words!r}"
    assert block is not None, f"{PAGE} has no commands after {words!r}"
    return block[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A coordinator and three nodes from nothing. The certificates are good for `LONG_S`."""
    folder = tmp_path_factory.mktemp("cluster")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    wheels, source = folder / "wheels", folder / "source"
    try:
        fill(wheels, ())
    except NoWheelsError as error:
        pytest.skip(f"there are no wheels for the machines: {error}")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "shared")
    shutil.copytree(TREE, source, ignore=left_out)
    names = ("head", *NODES, "thief", "laptop")
    binds = {wheels: "/mnt/wheels", source: "/mnt/muster"}
    with machines(folder, names, binds, ALONE) as found:
        site = Site(found)
        try:
            for machine in found.values():
                machine.sh(f"useradd --create-home {USER}")
            for node in NODES:
                found[node].sh(f"set -e; {TRAINING}")
            site.head.sh("cp -r /mnt/muster /root/muster")
            install = commands(INSTALL).replace("/path/to/muster", "/root/muster")
            site.head.sh(f"set -e; {PIP}\n{install}")
            site.printed = site.head.sh(f"{PIP}; {commands(UP)}").stdout
            # The one line that differs from any other cluster, so that renewals can be seen.
            lifetime = f"""s/^join: {{/join: {{"certificate_s": {LONG_S}, /"""
            site.head.sh(f"sed -i '{lifetime}' {CONFIG} && systemctl restart muster-coordinator")
            for node in NODES:
                line = install_line(site.printed) if node == NODES[0] else site.line()
                began = time.monotonic()
                found[node].sh(line)
                joined = time.monotonic()
                site.connected(node)
                listed = time.monotonic() - joined
                print(f"{node}: the line took {joined - began:.1f} s, then the pool {listed:.1f} s")
            yield site
        finally:
            for machine in found.values():
                with contextlib.suppress(AssertionError):
                    journal = machine.sh("journalctl --no-pager -o cat -u 'muster-*'", False)
                    print(f"== {machine.name}\n{journal.stdout}")


def test_the_printed_lines_make_a_cluster(site: Site) -> None:
    for node in NODES:
        _runs_a_job(site, node)
    assert "Traceback" not in site.head.sh("journalctl --no-pager -u muster-coordinator").stdout


def _runs_a_job(site: Site, node: str) -> None:
    site.connected(node)
    free = re.compile(rf"{node} connected .*\bfree\b")
    wait_long(lambda: free.search(site.state(node)) is not None, f"{node} is free")
    job = site.submit(node, "id -un; hostname")
    assert site.ended(job) == 0
    wait_long(lambda: site.head.sh(f"muster logs {job}", False).returncode == 0, "the log")
    assert site.muster(f"logs {job}").split()[:2] == [USER, node]


def test_the_printed_line_is_all_that_a_person_needs(site: Site) -> None:
    """On a machine that has no Muster, in a fresh home, without root."""
    line = re.search(r"^each person: +(.*)$", site.printed, re.MULTILINE)
    assert line is not None, site.printed
    printed = site.head.sh(line[1].replace("NAME", "ann")).stdout.strip()
    laptop = site.laptop
    laptop.sh("useradd --create-home ann")
    laptop.sh(f"printf '%s\\n' {shlex.quote(printed)} > /tmp/line && chmod 644 /tmp/line")
    laptop.sh("! su - ann -c 'command -v muster'")
    done = laptop.sh("su - ann -c 'sh /tmp/line'")
    assert "is not in PATH" in done.stderr
    # Debian puts ~/.local/bin into the PATH of the next login.
    assert "ann" in laptop.sh("su - ann -c 'muster whoami'").stdout
    for path, text in PROJECT.items():
        file = shlex.quote(f"mkdir -p $(dirname llama/{path}) && cat > llama/{path}")
        laptop.sh(f"printf %s {shlex.quote(text)} | su - ann -c {file}")
    done = laptop.sh("su - ann -c 'muster submit -f llama/job.yaml --follow'")
    assert "(3 files" in done.stderr, done.stderr
    assert "in 3 new pieces" in done.stderr, done.stderr
    assert "trained on gpu-01 gpu-02 to 90" in done.stdout
    owners = laptop.sh("find /home/ann ! -user ann").stdout
    assert owners == ""
    # The same person on a node, which has Muster.
    again = site.muster("token create --user ann")
    found = re.search(r"muster login \S+ ml1\.\S+", again)
    assert found is not None, again
    node = site.machines["gpu-01"]
    node.sh("useradd --create-home ann")
    assert "ann" in node.sh(f"su ann -c 'cd && {found[0]} && muster whoami'").stdout


def test_the_lines_again_change_nothing(site: Site) -> None:
    files = "find /etc/muster -type f | sort | xargs sha256sum"
    before = site.head.sh(files).stdout
    site.head.sh(f"{PIP}; {commands(UP)}")
    assert site.head.sh(files).stdout == before
    node = site.machines["gpu-01"]
    programs = "stat -c %i /opt/muster && " + files
    installed = node.sh(programs).stdout
    node.sh(site.line())
    assert node.sh(programs).stdout == installed
    site.connected("gpu-01")


def test_settings_of_agents_change_with_a_reload(site: Site) -> None:
    """Without a restart of either daemon, and without programs that a small system lacks."""

    def shown() -> str:
        return " ".join(site.muster("node show gpu-01").split())

    pid = "systemctl show -P MainPID muster-coordinator"
    before = site.head.sh(pid).stdout
    given = """nodes: {"names": {"gpu-01": {"unkillable_s": 71}}}"""
    file = "/etc/muster/coordinator.yaml"
    site.head.sh(f"echo '{given}' >> {file} && systemctl reload muster-coordinator")
    wanted = "unkillable_s 71.0 coordinator's nodes.names.gpu-01"
    wait_long(lambda: wanted in shown(), "the setting is used")
    site.head.sh(f"sed -i '/^nodes:/d' {file} && systemctl reload muster-coordinator")
    wait_long(lambda: wanted not in shown(), "it is taken away")
    assert site.head.sh(pid).stdout == before


def test_certificates_are_renewed_while_a_job_runs(site: Site) -> None:
    job = site.submit("gpu-02", "while [ ! -e /tmp/go ]; do sleep 0.1; done")
    site.lifetime(90, *NODES)
    before = {node: site.certificate(node) for node in NODES}

    def left() -> list[str]:
        return [node for node in NODES if site.certificate(node) == before[node]]

    wait_long(lambda: not left(), "all nodes renew")
    for node in NODES:
        site.connected(node)
    site.lifetime(LONG_S, *NODES)
    site.machines["gpu-02"].sh("touch /tmp/go")
    assert site.ended(job) == 0


def test_a_thief_gets_no_name_of_a_node_that_restarts(site: Site) -> None:
    """The thief has a join secret, as an unprivileged holder of one."""
    node = site.machines["gpu-01"]
    node.switch_off()
    site.cut("gpu-01")
    done = site.thief.sh(f"{site.line()} --node gpu-01").stdout
    assert "waits for an operator" in done
    assert "gpu-01" in site.muster("token list --join")
    assert site.links()["gpu-01"] != "connected"
    node.switch_on()
    site.connected("gpu-01")
    assert node.sh("systemctl is-active muster-agent").stdout.strip() == "active"
    site.muster("node accept gpu-01 --reject")
    assert site.ended(site.submit("gpu-01", "true")) == 0
    site.thief.sh("systemctl stop muster-agent")


def test_a_stolen_certificate_ends_with_the_next_renewal(site: Site) -> None:
    node, thief = site.machines["gpu-02"], site.thief
    thief.sh(f"{site.line()} --node gpu-02")
    thief.sh("systemctl stop muster-agent")
    site.muster("node accept gpu-02 --reject")
    # A new one, so that the copy is not replaced at once.
    site.lifetime(120, "gpu-02")
    text = node.sh(f"cat {CERTIFICATE}").stdout
    thief.sh(f"printf '%s' '{text}' > {CERTIFICATE}")
    thief.sh("systemctl start muster-agent")
    # The node is connected, so its copy is refused, and the operator sees that.
    # On a busy machine, both may have renewed by then.
    wait_long(
        lambda: any(it in site.state("gpu-02") for it in (address(4), TWICE)),
        "the other agent is shown",
    )
    assert site.links()["gpu-02"] == "connected" or TWICE in site.state("gpu-02")
    # Both renew, and either can be the first: neither is accepted from then on.
    wait_long(lambda: TWICE in site.state("gpu-02"), "the copy is seen")
    site.cut("gpu-02")
    thief.sh("systemctl stop muster-agent")
    site.lifetime(LONG_S)
    node.sh(site.line())
    site.muster("node accept gpu-02")
    site.connected("gpu-02")


def test_a_revoked_node_is_cut_off_alone(site: Site) -> None:
    job = site.submit("gpu-01", "while [ ! -e /tmp/go ]; do sleep 0.1; done")
    site.muster("node revoke gpu-03")
    site.cut("gpu-03")
    site.machines["gpu-03"].sh("systemctl restart muster-agent")
    assert "revoked" in site.state("gpu-03")
    site.machines["gpu-01"].sh("touch /tmp/go")
    assert site.ended(job) == 0
    site.machines["gpu-03"].sh(site.line())
    assert site.links()["gpu-03"] != "connected"
    site.muster("node accept gpu-03")
    site.connected("gpu-03")


def test_a_cluster_without_a_start_can_be_started_later(site: Site) -> None:
    """`up --no-start` makes no user, whom the unit needs."""
    laptop = site.laptop
    upgrade = re.search(r"^upgrades, on each: +(.*)$", site.printed, re.MULTILINE)
    assert upgrade is not None, site.printed
    up = "muster up --run-as trainer --python /opt/training --no-wheels"
    try:
        laptop.sh(upgrade[1])
        laptop.sh(f"{up} --no-start")
        laptop.sh("! getent passwd muster")
        laptop.sh(up)
        assert laptop.sh("stat -c %U /etc/muster/server-key.pem").stdout.strip() == "muster"
        assert laptop.sh("systemctl is-active muster-coordinator").stdout.strip() == "active"
        assert laptop.sh("muster nodes").returncode == 0
    finally:
        # The laptop of the other test has no Muster.
        laptop.sh("systemctl disable --now muster-coordinator", False)
        laptop.sh("rm -rf /usr/local/bin/muster /opt/muster /etc/muster .config/muster", False)
