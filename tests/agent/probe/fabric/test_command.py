"""`muster probe` and `muster doctor` as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec import structs

from agent.config import SUBMITTER, AgentConfig
from agent.probe.fabric import command, host_problems
from agent.probe.fabric.fs_root import FsRoot
from agent.probe.fabric.probe import ProbeOptions, probe
from agent.probe.fabric.user_access import JobUser
from agent.shims import apart
from muster.daemon.certificates import new_authority, new_key, node_certificate, signing_request
from muster.daemon.clock import SystemClock
from muster.fabric.model import Severity
from muster.fabric.schema import probe_schema
from tests.agent.probe.fabric.trees import CASES, Node, classical, unpack

jsonschema = pytest.importorskip("jsonschema")

TREE = Path(__file__).resolve().parents[4]
KEYS = {"name", "port", "pci", "numa_node", "hca_type", "fw_ver", "link_layer", "state"}
KEYS |= {"phys_state", "rate_gbps", "netdevs", "addresses", "gids", "gid_index", "use", "reason"}


def muster(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TREE), "HOME": "/nowhere", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def healthy(node: Node) -> None:
    node.hca("mlx5_0", hca_type="MT4129")
    node.port("mlx5_0", gids=classical("10.0.0.5", "eth0"))


def test_the_json_is_as_documented(node: Node) -> None:
    healthy(node)
    done = muster("probe", "--root", str(node.root), "--json", "--nccl", "2.20.5")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert set(found) >= {"hostname", "hcas", "gpus", "affinity", "networks", "env", "problems"}
    (hca,) = found["hcas"]
    assert set(hca) >= KEYS
    assert (hca["state"], hca["phys_state"], hca["rate_gbps"]) == ("ACTIVE", "LinkUp", 400)
    assert hca["class"] == "Ethernet MT4129"
    assert hca["gids"][3] == {
        "index": 3,
        "gid": "0000:0000:0000:0000:0000:ffff:0a00:0005",
        "type": "RoCE v2",
        "netdev": "eth0",
        "address": "10.0.0.5",
    }
    assert found["env"]["NCCL_IB_GID_INDEX"] == "3"


def test_every_case_fits_the_schema(tmp_path: Path) -> None:
    schema = json.loads((TREE / "docs/reference/probe.schema.json").read_text("utf-8"))
    assert schema == json.loads(json.dumps(probe_schema())), (
        "write it anew: muster probe --schema > docs/reference/probe.schema.json"
    )
    validator = jsonschema.Draft202012Validator(schema)
    for case in sorted(CASES.iterdir()):
        if case.is_dir():
            root = unpack(case.name, tmp_path / case.name)
            done = in_process("probe", "--root", str(root), "--json")
            validator.validate(json.loads(done[1]))


def in_process(verb: str, *arguments: str) -> tuple[int, str]:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = command.main(verb, arguments)
    return code, out.getvalue()


def test_the_page_names_every_field() -> None:
    page = (TREE / "docs/reference/probe.md").read_text("utf-8")
    for kind in probe_schema()["$defs"].values():
        for name in kind.get("properties", ()):
            forms = (f"`{name}`", f"`.{name}`", f"`{name}[]`", f"`.{name}[]`")
            assert any(form in page for form in forms), name


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_the_text_fits_a_page(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    for verb in command.VERBS:
        _, text = in_process(verb, "--root", str(root))
        wide = [line for line in text.splitlines() if len(line) > 80 and "=" not in line]
        assert not wide
    code, text = in_process("probe", "--root", str(root))
    assert code == 0
    for hca in json.loads(in_process("probe", "--root", str(root), "--json")[1])["hcas"]:
        assert f"{hca['name']}:{hca['port']}" in text


def test_long_names_hide_no_verdict(node: Node) -> None:
    for at in range(2):
        name = f"roceP2p{at}s0f0np1"
        node.hca(name, path=f"pci000{at}:00/000{at}:00:00.0/000{at}:01:00.0")
        node.port(name, gids=classical(f"10.{at}.0.5", f"enP2p{at}s0f0np1"))
    _, text = in_process("probe", "--root", str(node.root))
    lines = [line for line in text.splitlines() if line.startswith("roce")]
    assert [line.split()[1] for line in lines] == ["yes", "yes"]
    assert all(len(line) <= 80 for line in lines)


def test_a_doctor_s_code_is_the_worst_problem(node: Node) -> None:
    empty = muster("doctor", "--root", str(node.root))
    assert (empty.returncode, empty.stdout) == (0, "0 problems, no RDMA here: TCP\n")
    healthy(node)
    assert muster("doctor", "--root", str(node.root)).returncode == 0
    node.hca("mlx5_1", hca_type="MT4129")
    place = node.port("mlx5_1", gids=classical("10.0.1.5", "eth1"), rate="100 Gb/sec (4X EDR)")
    slow = muster("doctor", "--root", str(node.root))
    assert slow.returncode == 1
    assert "warning: mlx5_1:1 runs at 100 Gb/s" in slow.stdout
    assert "fix:" in slow.stdout
    node.file(f"{place}/state", "1: DOWN\n")
    down = muster("doctor", "--root", str(node.root), "--json")
    assert down.returncode == 2
    assert json.loads(down.stdout)["problems"][0]["severity"] == "error"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--root", "/no/such/folder"), "is not a directory"),
        (("--nccl", "torch"), "is not a version"),
        (("--config", "/no/such.yaml"), "no such configuration file"),
        (("--frobnicate",), "--help"),
    ],
)
@pytest.mark.parametrize(("verb", "code"), [("probe", 2), ("doctor", 125)])
def test_invalid_arguments_are_refused(
    verb: str, code: int, arguments: tuple[str, ...], said: str
) -> None:
    done = muster(verb, *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith(f"muster {verb}: ")
    assert "Traceback" not in done.stderr


def test_the_configuration_says_which(node: Node, tmp_path: Path) -> None:
    for at in range(2):
        node.hca(f"mlx5_{at}")
        node.port(f"mlx5_{at}", gids=classical(f"10.{at}.0.5", f"eth{at}"))
    file = tmp_path / "agent.yaml"
    file.write_text("fabric: {exclude: [mlx5_1]}\ninterface: eth1\n")
    done = muster("probe", "--root", str(node.root), "--config", str(file), "--json")
    found = json.loads(done.stdout)
    assert found["env"]["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert found["env"]["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert "configuration (mlx5_1)" in found["hcas"][1]["reason"]
    # This machine's environment is not of the other one.
    own = muster("probe", "--root", str(node.root), "--json", MUSTER_AGENT_FABRIC_EXCLUDE="mlx5_0")
    assert json.loads(own.stdout)["env"]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


@pytest.mark.skipif(os.access(command.CONFIG, os.R_OK), reason="an agent is set up here")
def test_the_configuration_of_an_agent_that_is_set_up_here_is_found(tmp_path: Path) -> None:
    file = tmp_path / ".config/muster/agent.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("interfaec: eth1\n")
    for verb, code in (("probe", 2), ("doctor", 125)):
        done = muster(verb, HOME=str(tmp_path))
        assert done.returncode == code
        assert f"{file}" in done.stderr
        assert "interfaec" in done.stderr
    elsewhere = muster("probe", HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    assert elsewhere.returncode == 0


def test_this_very_machine() -> None:
    done = muster("probe", "--json", MUSTER_AGENT_FABRIC_EXCLUDE="10.0.0.0/8")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(probe_schema()).validate(found)
    assert found["hostname"]
    assert found["limits"]["memlock"] is not None
    assert muster("doctor").returncode in (0, 1, 2)


def test_a_machine_that_no_agent_could_be_named_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "GPU_Host.")
    for name in list(os.environ):
        if name.startswith("MUSTER_AGENT_"):
            monkeypatch.delenv(name)
    code, text = in_process("doctor")
    assert code in (0, 1, 2)
    assert "problem" in text


def test_help_names_the_codes() -> None:
    assert "125" in muster("doctor", "--help").stdout
    assert "--root" in muster("probe", "--help").stdout
    assert json.loads(muster("probe", "--schema").stdout)["title"].startswith("muster probe")


def test_a_reader_that_has_seen_enough(node: Node) -> None:
    healthy(node)
    done = subprocess.run(
        f"{sys.executable} -m muster.cli probe --root {node.root} --json | head -1",
        shell=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""


def test_device_files_are_judged_for_the_user_of_jobs(tmp_path: Path) -> None:
    device = tmp_path / "uverbs0"
    device.touch(0o660)
    found = device.stat()
    stranger = JobUser("trainer", found.st_uid + 1, frozenset({found.st_gid + 1}), "/")
    assert "shuts out trainer" in (stranger.cannot_open(str(device)) or "")
    device.chmod(0o666)
    assert stranger.cannot_open(str(device)) is None
    device.chmod(0o060)
    member = JobUser("trainer", found.st_uid + 1, frozenset({found.st_gid}), "/")
    assert member.cannot_open(str(device)) is None
    assert JobUser("root", 0, frozenset(), "/root").cannot_open(str(device)) is None
    assert "no such file" in (stranger.cannot_open(str(tmp_path / "none")) or "")
    assert FsRoot(tmp_path).exists("uverbs0")


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path) -> None:
    """The node has joined, and its agent could not renew the certificate."""
    now = SystemClock().now().wall
    authority = new_authority(now)
    made = {}
    for name, days in (("late", 300), ("soon", 3)):
        asked = signing_request(new_key(), "n1")
        lasts_s = 400 * 86400.0
        began = now + days * 86400.0 - lasts_s
        made[name] = tmp_path / f"{name}.pem"
        made[name].write_bytes(node_certificate(authority, asked, "n1", began, lasts_s).pem)
    config = AgentConfig(coordinator="http://127.0.0.1:7077", certificate=made["soon"])
    ((what, _),) = ends = command.asked_by(config).certificate_ends
    assert what.startswith(f"the node's certificate {made['soon']} ends at ")
    assert not command.asked_by(structs.replace(config, certificate=made["late"])).certificate_ends
    problem = probe(tmp_path, ProbeOptions(certificate_ends=ends)).problems
    assert what in {found.what for found in problem}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("run_as", ["nobody", SUBMITTER])
def test_doctor_names_the_closed_folder_above_the_state(run_as: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        above = Path(name) / "srv"
        state = above / "muster/agent"
        state.mkdir(parents=True)
        Path(name).chmod(0o711)
        above.chmod(0o700)
        config = AgentConfig(run_as=run_as, state_dir=state)
        closed = command.asked_by(config).closed
        above.chmod(0o711)
        state.chmod(0o700)
        assert not command.asked_by(config).closed, "the agent opens its own folder itself"
    assert closed.endswith(f"(chmod o+x); the first that is closed is {above}")
    (found,) = (p for p in probe(asked=ProbeOptions(closed=closed)).problems if closed in p.what)
    assert found.severity == Severity.ERROR
    assert "chmod o+x" in found.fix


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as their submitters")
@pytest.mark.parametrize(("run_as", "said"), [("nobody", False), (SUBMITTER, True)])
def test_doctor_says_that_submitters_need_accounts(run_as: str, said: bool) -> None:
    asked = command.asked_by(AgentConfig(run_as=run_as))
    assert asked.submitters == said
    fixes = [problem.fix for problem in probe(asked=asked).problems]
    assert any("useradd --create-home NAME" in fix for fix in fixes) == said


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        (apart.OFF.format("fence"), "set `fence` to true"),
        ("there is no nft on this node", "install nftables, and set `fence` to true"),
    ],
)
def test_a_fence_that_is_only_switched_off_needs_no_package(why: str, fix: str) -> None:
    (found,) = host_problems.of_apart({apart.FENCE: why})
    assert found.fix == fix
