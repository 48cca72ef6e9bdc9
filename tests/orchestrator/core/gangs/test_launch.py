"""The command line and environment of each node, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from muster.protocol.ids import TaskId
from muster.protocol.link.codec import FRAME_BYTES_MAX, CommandFrame, encode
from muster.protocol.link.control_channel import ArrangeTask, PrepareTask
from muster.spec.model import Argv, Launcher, Role, Roles, Shell, StartMethod
from orchestrator.core.engine import react
from orchestrator.core.gangs import commands
from orchestrator.core.gangs.host_names import OTHERS_MAX
from orchestrator.core.gangs.launch import Gang, gang_of
from orchestrator.core.model.state import Attempt, Job
from tests.orchestrator.core.playbook import Cluster, spec, task


def arranged(gpus: tuple[int, int] = (8, 8), **more: Any) -> dict[str, ArrangeTask]:
    cluster = Cluster()
    for name, count in zip(("gpu-1", "gpu-2"), gpus, strict=True):
        cluster.join(name, gpus=count)
    cluster.submit(spec(nodes=2, **more))
    for rank in (0, 1):
        cluster.prepare(
            task(1, 1, rank),
            address=f"10.0.0.{rank + 1}",
            gpus=gpus[rank],
            log_dir=f"/t{rank}/logs",
            interface="eth0",
        )
    return {
        name: command
        for name in ("gpu-1", "gpu-2")
        for command in cluster.commands(name, ArrangeTask)
        if isinstance(command, ArrangeTask)
    }


def test_the_common_part_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows with the gang: made for each node, it grew with its square."""
    made: list[Gang] = []

    def counted(job: Job, attempt: Attempt) -> Gang:
        made.append(gang_of(job, attempt))
        return made[-1]

    monkeypatch.setattr(react, "gang_of", counted)
    monkeypatch.setattr(commands, "gang_of", counted)
    plans = arranged()
    assert len(made) == 1
    assert all(plan.hosts is made[0].hosts for plan in plans.values())


def test_torchruns_words() -> None:
    long = ("train.py", "--lr", "1e-5", "--text", "a 'b' \"c\" $HOME", "--ü", "")
    worker = arranged(run=Argv(long))["gpu-2"]
    assert worker.argv == (
        *("--nnodes", "2", "--node-rank", "1", "--rdzv-backend", "static"),
        *("--master-addr", "10.0.0.1", "--master-port", "20000", "--max-restarts", "0"),
        *("--nproc-per-node", "8", "--rdzv-id", "1.1", "--redirects", "3"),
        *("--log-dir", "/t1/logs", "--local-addr", "10.0.0.2"),
        *long,
    )


def test_further_options_stand_before_the_program() -> None:
    argv = arranged(torchrun_args=("--role=trainer",), run=Argv(("train.py",)))["gpu-2"].argv
    assert argv[-2:] == ("--role=trainer", "train.py")


def test_only_the_launcher_is_asked_to_listen() -> None:
    plans = arranged()
    assert (plans["gpu-1"].listen_port, plans["gpu-2"].listen_port) == (20000, None)
    assert arranged(launcher=Launcher.NONE)["gpu-1"].listen_port is None


def test_the_start_method_and_the_preloaded_modules_reach_the_bootstrap() -> None:
    keys = ("MUSTER_START_METHOD", "MUSTER_PRELOAD")
    forked = arranged(preload=("transformers", "einops"))["gpu-2"].env
    assert [forked.get(key) for key in keys] == ["fork", "transformers einops"]
    started = arranged(start_method=StartMethod.EXEC)["gpu-2"].env
    assert [started.get(key) for key in keys] == [None, None]


def test_the_environment_of_a_node() -> None:
    env = arranged(env={"A": "1", "MUSTER_JOB_ID": "7"})["gpu-2"].env
    assert env == {
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "OMP_NUM_THREADS": "1",
        "A": "1",
        "MUSTER_START_METHOD": "fork",
        "MUSTER_JOB_ID": "1",
        "MUSTER_JOB_NAME": "train",
        "MUSTER_ATTEMPT": "1",
        "MUSTER_TASK": "1.1.1",
        "MUSTER_NODE_RANK": "1",
        "MUSTER_NUM_NODES": "2",
        "MUSTER_GPUS_PER_NODE": "8",
        "MUSTER_NUM_GPUS": "16",
        "MUSTER_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "MUSTER_NODE_NAMES": "gpu-1\ngpu-2",
        "MUSTER_HOSTFILE": "/t/hostfile",
        "MUSTER_MASTER_ADDR": "10.0.0.1",
        "MUSTER_MASTER_PORT": "20000",
        "MUSTER_WORKDIR": "/w",
        "MUSTER_SCRATCH": "/t/scratch",
        "MUSTER_OUTPUT_DIR": "/o",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20000",
        "NODE_RANK": "1",
    }


def test_ranks_are_torchruns_to_name() -> None:
    for launcher in (Launcher.TORCHRUN, Launcher.NONE):
        plan = arranged(launcher=launcher)["gpu-1"]
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & plan.env.keys()
        assert (plan.ranks, plan.interpreter) == ((), False)


def test_an_elastic_gang_meets_at_the_launchers_store() -> None:
    plans = arranged(max_nodes=4, rendezvous="c10d", stop={"grace_s": 4.5})
    worker = plans["gpu-2"]
    assert worker.argv[:12] == (
        *("--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.0.0.1:20000"),
        *("--rdzv-conf", "is_host=0,last_call_timeout=10", "--max-restarts", "3"),
        *("--nproc-per-node", "8"),
    )
    assert "is_host=1,last_call_timeout=10" in plans["gpu-1"].argv
    assert plans["gpu-1"].listen_port == 20000
    fixed = arranged(rendezvous="c10d")["gpu-2"].argv
    assert fixed[:2] == ("--nnodes", "2")
    assert fixed[fixed.index("--max-restarts") + 1] == "0"


def nproc(plan: ArrangeTask) -> str:
    return plan.argv[plan.argv.index("--nproc-per-node") + 1]


def test_each_node_has_the_ranks_of_its_gpus() -> None:
    plans = arranged(gpus=(4, 2))
    assert [nproc(plan) for plan in plans.values()] == ["4", "2"]
    env = plans["gpu-2"].env
    assert (env["MUSTER_GPUS_PER_NODE"], env["MUSTER_NUM_GPUS"]) == ("2", "6")
    assert plans["gpu-1"].hostfile == "gpu-1 slots=4\ngpu-2 slots=2\n"


def test_a_role_has_its_own_command_number_and_variables() -> None:
    worker = Role(Argv(("serve.py", "x")), 2, {"A": "2"})
    plans = arranged(env={"A": "1", "B": "1"}, roles=Roles(worker=worker))
    assert [nproc(plan) for plan in plans.values()] == ["8", "2"]
    assert plans["gpu-1"].argv[-1] == "train.py"
    assert plans["gpu-2"].argv[-2:] == ("serve.py", "x")
    assert [(p.env["A"], p.env["B"]) for p in plans.values()] == [("1", "1"), ("2", "1")]


def test_ranks_that_we_start_find_what_torchrun_would_set() -> None:
    plans = arranged(launcher=Launcher.PROCESSES, nproc_on={"gpu-1": 4, "gpu-2": 2})
    plan = plans["gpu-2"]
    assert (plan.argv, plan.interpreter, plan.listen_port) == (("train.py",), True, None)
    assert [{**plan.env, **own} for own in plan.ranks] == [
        {
            **plan.env,
            "RANK": str(4 + local),
            "LOCAL_RANK": str(local),
            "ROLE_RANK": str(4 + local),
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": "6",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "20000",
            "OMP_NUM_THREADS": "1",
        }
        for local in range(2)
    ]
    # With these a program would look for torchrun's store, which nobody serves.
    assert not any(name.startswith(("TORCHELASTIC", "PET_")) for name in plan.env)
    assert [own["RANK"] for own in plans["gpu-1"].ranks] == ["0", "1", "2", "3"]


def test_a_program_that_is_no_python_is_started_itself() -> None:
    plan = arranged(launcher=Launcher.PROCESSES, run=Argv(("./bench", "x")))["gpu-1"]
    assert (plan.argv, plan.interpreter) == (("./bench", "x"), False)


def test_a_users_own_sockets_win() -> None:
    env = arranged(env={"NCCL_SOCKET_IFNAME": "ib0"})["gpu-1"].env
    assert env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_without_torchrun_a_bare_torchrun_finds_its_place() -> None:
    plan = arranged(launcher=Launcher.NONE, run=Shell("torchrun train.py"))["gpu-2"]
    assert plan.argv == ("/bin/bash", "-euo", "pipefail", "-c", "torchrun train.py")
    pet = {k: v for k, v in plan.env.items() if k.startswith("PET_")}
    assert pet == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "20000",
    }


def test_host_table_and_hostfile_are_in_rank_order() -> None:
    plan = arranged()["gpu-2"]
    assert plan.hosts == (("gpu-1", "10.0.0.1"), ("gpu-2", "10.0.0.2"))
    assert plan.hostfile == "gpu-1 slots=8\ngpu-2 slots=8\n"


def test_only_the_launcher_looks_for_ports() -> None:
    cluster = Cluster()
    cluster.join("n0", "n1")
    cluster.submit(spec(nodes=2, setup=Shell("make")))
    launcher, worker = (cluster.commands(n, PrepareTask)[0] for n in ("n0", "n1"))
    assert isinstance(launcher, PrepareTask)
    assert isinstance(worker, PrepareTask)
    assert launcher.ports > 0
    assert worker.ports == 0
    assert worker.task == TaskId("1.1.1")
    assert worker.setup == ("/bin/bash", "-euo", "pipefail", "-c", "make")


def table(*hostnames: str) -> tuple[tuple[str, str], ...]:
    cluster = Cluster()
    names = [f"gpu-{number}" for number in range(len(hostnames))]
    cluster.join(*names)
    cluster.submit(spec(nodes=len(names)))
    for rank, hostname in enumerate(hostnames):
        cluster.prepare(task(1, 1, rank), address=f"10.0.0.{rank}", hostname=hostname)
    (plan,) = cluster.commands(names[0], ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    return plan.hosts


def test_the_host_table_has_nothing_but_the_names_of_nodes() -> None:
    """A node may report the name of any machine as its own."""
    plain = (("gpu-0", "10.0.0.0"), ("gpu-1", "10.0.0.1"), ("gpu-2", "10.0.0.2"))
    assert table("gpu-0", "nas01", "mirror.example.org") == plain


def test_a_gang_of_one_has_no_host_table() -> None:
    assert table("other-name") == ()


def others(*addresses: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the other addresses in the plan of a gang on nodes with these addresses; the first of
    each is the gang's."""
    cluster = Cluster()
    names = [f"gpu-{number}" for number in range(len(addresses))]
    cluster.join(*names)
    cluster.submit(spec(nodes=len(names)))
    for rank, its in enumerate(addresses):
        cluster.prepare(task(1, 1, rank), address=its[0], addresses=its)
    (plan,) = cluster.commands(names[0], ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    return plan.others


def test_a_gang_gets_its_nodes_other_addresses() -> None:
    assert others(("10.0.0.1", "10.1.0.1", "fd00::1"), ("10.0.0.2", "10.1.0.2")) == {
        "10.0.0.1": ("10.1.0.1", "fd00::1"),
        "10.0.0.2": ("10.1.0.2",),
    }


def test_an_address_that_does_not_distinguish_nodes_is_none_of_them() -> None:
    loopback, docker, local = ("127.0.0.1", "::1"), "172.17.0.1", ("fe80::1", "169.254.0.9")
    assert others(("10.0.0.1", *loopback, docker, *local), ("10.0.0.2", docker)) == {
        "10.0.0.1": (),
        "10.0.0.2": (),
    }
    assert others(("10.0.0.1", "127.0.0.1", "10.0.0.2"), ("10.0.0.2",))["10.0.0.1"] == ()


def test_the_plan_of_500_nodes_with_10_networks_fits_a_frame() -> None:
    cluster = Cluster()
    nodes = 500
    names = [f"gpu-node-{number:03d}" for number in range(nodes)]
    cluster.join(*names)
    cluster.submit(spec(nodes=nodes))
    for rank, name in enumerate(names):
        host, net = rank % 250 + 1, rank // 250
        v4 = [f"10.{port}.{net}.{host}" for port in range(10)]
        v6 = [f"fd00:{port:x}:1234:5678:9c05:22ff:{net:04x}:{host:04x}" for port in range(10)]
        cluster.prepare(
            task(1, 1, rank),
            address=v4[0],
            hostname=f"{name}.cluster.example.org",
            addresses=(*v4, *v6),
        )
    (plan,) = cluster.commands(names[-1], ArrangeTask)
    assert isinstance(plan, ArrangeTask)
    assert all(len(more) == 19 for more in plan.others.values())
    assert len(encode(CommandFrame(1, plan))) < FRAME_BYTES_MAX / 2


def test_every_node_keeps_some_addresses_of_too_many() -> None:
    many = tuple(f"10.{net}.0.{{}}" for net in range(250))
    addresses = others(*(tuple(a.format(rank) for a in many) for rank in range(1, 101)))
    assert {len(more) for more in addresses.values()} == {OTHERS_MAX // 100}
