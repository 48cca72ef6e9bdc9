"""Jobs that get parts of nodes: which GPUs, beside whom, and what is said of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import JobId, NodeName
from muster.protocol.link.control_channel import (
    ArrangeTask,
    Fingerprint,
    PrepareTask,
    TaskReport,
    with_devices,
)
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import JobState, TaskState
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.invariants import check
from orchestrator.core.facts import jobs as f
from orchestrator.core.facts.effects import Declined
from orchestrator.core.scheduling import scheduler
from orchestrator.core.scheduling.gpus import choose
from orchestrator.core.views.display import job_summary, job_view, node_view
from orchestrator.core.views.explain import explain
from tests.orchestrator.core.playbook import INVENTORY, STRICT, Cluster, spec, task

H100 = "NVIDIA H100 80GB HBM3"


def gpu(number: int, node: str = "a", **more: Any) -> GpuDevice:
    """Two sockets of four; pairs of them behind a switch."""
    socket, switch = number // 4, number // 2
    path = (f"pci0000:0{socket}", f"0000:0{socket}:0{switch}.0", f"0000:1{number}:00.0")
    fields: dict[str, Any] = {"model": H100, "numa_node": socket, "path": path, **more}
    return GpuDevice(path[-1], fields.pop("uuid", uuid(number, node)), **fields)


def uuid(number: int, node: str = "a") -> str:
    return f"GPU-{node}-{number}"


def join(cluster: Cluster, name: str, count: int = 8, **more: Any) -> None:
    tasks = more.pop("tasks", ())
    devices = more.pop("devices", None) or tuple(gpu(at, name) for at in range(count))
    described = with_devices(msgspec.structs.replace(INVENTORY, cpus=64, **more), devices)
    fields = {field: getattr(described, field) for field in described.__struct_fields__}
    cluster.join(name, tasks=tasks, **{**fields, "machine_id": more.get("machine_id", name)})


def part(gpus: int | None, name: str = "train", **more: Any) -> Any:
    return spec(name, resources={"gpu": gpus, **more.pop("resources", {})}, **more)


def where(cluster: Cluster, job: int) -> dict[str, tuple[str, ...]]:
    return {it.node: it.gpus for it in cluster.job(job).attempts[-1].tasks}


def numbers(cluster: Cluster, job: int) -> list[int]:
    (gpus,) = where(cluster, job).values()
    return [int(it.rpartition("-")[2]) for it in gpus]


# --- which of a node's GPUs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "wanted", "meant"),
    [
        ("01234567", 8, "01234567"),
        ("01234567", 4, "0123"),
        ("01234567", 2, "01"),
        ("01234567", 1, "0"),
        # The group that is left over suits one; the others stay whole.
        ("1234567", 1, "1"),
        ("0124567", 1, "2"),
        ("1234567", 2, "23"),
        ("1234567", 4, "4567"),
        ("0123457", 3, "457"),
        ("1234567", 3, "123"),
        # A socket and the switch that is left over on the other one.
        ("0123467", 6, "012367"),
        ("0246", 2, "02"),
        ("0145", 3, "014"),
    ],
)
def test_gpus_that_share_a_switch_go_together_and_others_stay_whole(
    free: str, wanted: int, meant: str
) -> None:
    found = choose([gpu(int(at)) for at in free], wanted)
    assert found == tuple(uuid(int(at)) for at in meant)


devices = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 2)),
        st.lists(st.sampled_from("abc"), max_size=4).map(tuple),
    ),
    max_size=12,
)


@given(devices, st.data())
def test_so_many_as_wanted_of_those_that_are_free(
    described: list[tuple[int | None, tuple[str, ...]]], data: st.DataObject
) -> None:
    free = [
        GpuDevice(f"{at:02}", f"GPU-{at}", numa_node=numa, path=path)
        for at, (numa, path) in enumerate(described)
    ]
    wanted = data.draw(st.integers(0, len(free)))
    found = choose(free, wanted)
    assert len(found) == len(set(found)) == wanted
    assert set(found) <= {it.uuid for it in free}
    assert found == choose(free, wanted)
    # Never spread over more sockets than there must be.
    sizes = sorted(
        (sum(it.numa_node == numa for it in free) for numa in {it.numa_node for it in free}),
        reverse=True,
    )
    needed = next((n for n in range(len(sizes) + 1) if sum(sizes[:n]) >= wanted), 0)
    assert len({it.numa_node for it in free if it.uuid in found}) == needed


# --- on which node -----------------------------------------------------------------------------


def test_parts_fill_a_node_before_another_is_begun() -> None:
    cluster = Cluster()
    join(cluster, "a")
    join(cluster, "b", 4)
    join(cluster, "c")
    for wanted, node in ((2, "b"), (3, "a"), (2, "b"), (5, "a"), (8, "c")):
        job = cluster.requests + 1
        cluster.submit(part(wanted))
        assert list(where(cluster, job)) == [node], job
    assert check(cluster.state) == []
    cluster.submit(part(1))
    assert not cluster.job(6).attempts


def test_a_gang_has_as_many_on_each_of_its_nodes() -> None:
    cluster = Cluster()
    for name in "abc":
        join(cluster, name)
    cluster.submit(part(6, nodes=2))
    cluster.submit(part(4, nodes=2))
    assert where(cluster, 1) == {n: tuple(uuid(at, n) for at in range(6)) for n in "ab"}
    # One node has room for four; two do not.
    assert not cluster.job(2).attempts
    cluster.submit(part(2, nodes=1, priority=60))
    assert list(where(cluster, 3)) == ["a"]
    assert check(cluster.state) == []


def test_a_job_without_gpus_in_its_words_has_its_node_alone() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(2))
    cluster.submit(part(None))
    assert not cluster.job(2).attempts
    for rank_task in cluster.run_gang(1):
        cluster.finish(rank_task)
    assert where(cluster, 2) == {"a": ()}
    cluster.submit(part(1))
    assert not cluster.job(3).attempts
    explained = explain(cluster.state, cluster.job(3), cluster.now).nodes[0].reason.text
    assert explained == "runs job 2, which has no time limit"


@pytest.mark.parametrize(
    ("runs", "waits", "taken"),
    [
        (None, 1, "job 1 takes"),
        (2, None, "job 2 takes"),
        (None, None, "jobs 1 and 2 take"),
        (None, 8, ""),
        (8, 1, ""),
    ],
)
def test_explain_says_how_a_node_is_shared(runs: int | None, waits: int | None, taken: str) -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(runs))
    cluster.submit(part(waits))
    assert not cluster.job(2).attempts
    how = "whole nodes: jobs share a node if each names its GPUs (resources: {gpu: 1})"
    hints = explain(cluster.state, cluster.job(2), cluster.now).hints
    assert hints == ((f"{taken} {how}",) if taken else ())


def test_an_agent_that_cannot_distinguish_its_gpus_gives_the_whole_node() -> None:
    cluster = Cluster()
    cluster.join("old", gpus=8, gpu_model=H100, machine_id="old")
    join(cluster, "dark", devices=(gpu(0), gpu(1, uuid="")))
    cluster.submit(part(1))
    cluster.submit(part(1))
    cluster.submit(part(1))
    assert where(cluster, 1) == {"dark": ()}
    assert where(cluster, 2) == {"old": ()}
    assert not cluster.job(3).attempts


def test_models_are_distinguished_on_one_node() -> None:
    cluster = Cluster()
    a100 = "NVIDIA A100-SXM4-80GB"
    mixed = tuple(gpu(at, model=H100 if at < 2 else a100) for at in range(4))
    join(cluster, "a", devices=mixed)
    refused = cluster.submit(part(3, resources={"gpu_model": "A100"}))
    assert isinstance(refused, Declined)
    assert "a has 2 of the 3 A100 wanted" in refused.text
    refused = cluster.submit(part(1, resources={"gpu_model": "A10"}))
    assert isinstance(refused, Declined)
    assert f"a has GPUs of model {a100}; {H100}, not A10" in refused.text
    cluster.submit(part(2, resources={"gpu_model": "A100-80GB"}))
    assert numbers(cluster, 1) == [2, 3]
    cluster.submit(part(2, resources={"gpu_model": "h100"}))
    assert numbers(cluster, 2) == [0, 1]


def test_cpus_and_memory_that_parts_asked_for_are_taken() -> None:
    cluster = Cluster()
    join(cluster, "a", memory_bytes=100 << 30)
    cluster.submit(part(1, resources={"cpu": 50, "memory_bytes": 60 << 30}))
    cluster.submit(part(1, resources={"cpu": 20}))
    explained = explain(cluster.state, cluster.job(2), cluster.now).nodes[0].reason
    assert (explained.code, explained.text) == (
        "cpu_busy",
        "has 14 of 64 CPUs free: job 1 has the rest, which has no time limit",
    )
    cluster.cancel(2)
    cluster.submit(part(1, resources={"memory_bytes": 50 << 30}))
    explained = explain(cluster.state, cluster.job(3), cluster.now).nodes[0].reason
    assert explained.code == "memory_busy"
    assert explained.text.startswith("has 40.0 GiB of memory free: job 1 has the rest")


def test_gpus_of_two_agents_of_one_machine_are_given_once() -> None:
    cluster = Cluster()
    same = tuple(gpu(at) for at in range(4))
    for name in ("a", "b"):
        join(cluster, name, devices=same, machine_id="m", shared_host=True)
    refused = cluster.submit(part(1, nodes=2))
    assert isinstance(refused, Declined)
    cluster.submit(part(3))
    cluster.submit(part(1))
    cluster.submit(part(1))
    assert numbers(cluster, 1) == [0, 1, 2]
    assert numbers(cluster, 2) == [3]
    assert not cluster.job(3).attempts
    cluster.cancel(3)
    cluster.submit(part(None))
    assert not cluster.job(4).attempts
    assert check(cluster.state) == []


# --- GPUs that come and go ---------------------------------------------------------------------


def test_a_gpu_that_is_not_sound_is_named_and_not_given() -> None:
    cluster = Cluster()
    join(cluster, "a", devices=(gpu(0), gpu(1, fault="does not answer"), gpu(2)))
    refused = cluster.submit(part(3))
    assert isinstance(refused, Declined)
    assert "a has 2 of the 3 GPUs wanted (0000:11:00.0 does not answer)" in refused.text
    cluster.submit(part(None))
    assert where(cluster, 1) == {"a": (uuid(0), uuid(2))}
    cluster.prepare(task(1, 1, 0), gpus=2)
    (arrange,) = cluster.commands("a", ArrangeTask)
    assert isinstance(arrange, ArrangeTask)
    assert arrange.env["CUDA_VISIBLE_DEVICES"] == f"{uuid(0)},{uuid(2)}"
    assert arrange.env["MUSTER_GPUS_PER_NODE"] == "2"
    shown = node_view(cluster.state.nodes[NodeName("a")], cluster.now)
    assert [(it.job, it.fault) for it in shown.devices] == [
        (1, None),
        (None, "does not answer"),
        (1, None),
    ]
    cluster.submit(part(1))
    assert not cluster.job(2).attempts


def test_a_job_with_whole_nodes_may_choose_among_sound_gpus_itself() -> None:
    cluster = Cluster()
    join(cluster, "a", devices=(gpu(0), gpu(1, fault="does not answer")))
    cluster.submit(part(None, env={"CUDA_VISIBLE_DEVICES": "0"}))
    (prepare,) = cluster.commands("a", PrepareTask)
    assert isinstance(prepare, PrepareTask)
    assert prepare.env["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_node_is_told_what_a_job_requests_of_it() -> None:
    cluster = Cluster()
    join(cluster, "a", 2, memory_bytes=1 << 34, unenforced={"memory": "no controller"})
    cluster.submit(part(1, resources={"cpu": 2, "memory_bytes": 1 << 30}))
    cluster.submit(part(1))
    told = cluster.commands("a", PrepareTask)
    assert [(it.cpus, it.memory_bytes) for it in told if isinstance(it, PrepareTask)] == [
        (2, 1 << 30),
        (0, 0),
    ]
    shown = node_view(cluster.state.nodes[NodeName("a")], cluster.now)
    assert shown.unenforced == {"memory": "no controller"}


def test_news_of_a_gpu_make_room_or_take_it() -> None:
    cluster = Cluster()
    join(cluster, "a", 2)

    def tell(*devices: GpuDevice) -> None:
        cluster.observe("a", devices=devices)

    cluster.submit(part(2))
    cluster.submit(part(2))
    tell(gpu(0), gpu(1, fault="does not answer"))
    assert cluster.state.nodes[NodeName("a")].inventory.gpus == 1
    for rank_task in cluster.run_gang(1):
        cluster.finish(rank_task)
    assert not cluster.job(2).attempts
    tell(gpu(0), gpu(1, uuid="GPU-new"))
    assert where(cluster, 2) == {"a": (uuid(0), "GPU-new")}
    # A report with the same UUID twice does not replace the known devices.
    tell(gpu(0), gpu(1, uuid=uuid(0)))
    assert [it.uuid for it in cluster.state.nodes[NodeName("a")].inventory.devices] == [
        uuid(0),
        "GPU-new",
    ]


def test_an_agent_with_gpus_that_nobody_can_go_by_is_not_let_in() -> None:
    cluster = Cluster()
    cluster.join("a", devices=(gpu(0), gpu(0)))
    assert cluster.refused == ["bad_gpus"]


def test_a_refusal_because_of_gpus_is_retried_elsewhere() -> None:
    cluster = Cluster()
    join(cluster, "a", 2)
    join(cluster, "b", 2)
    cluster.submit(part(2))
    cluster.refuse(task(1, 1, 0), "gpu_gone", node_fault=True)
    cluster.clean(task(1, 1, 0))
    cluster.pass_time(60)
    assert where(cluster, 1) == {"b": tuple(uuid(at, "b") for at in range(2))}


# --- commands to nodes, and views of users -------------------------------------------------------


def test_a_task_gets_its_gpus_and_counts_follow_them() -> None:
    cluster = Cluster()
    for name in "ab":
        join(cluster, name)
    cluster.submit(part(2, nodes=2))
    for rank in (0, 1):
        cluster.prepare(task(1, 1, rank), gpus=8)
    for name in "ab":
        mine = f"{uuid(0, name)},{uuid(1, name)}"
        (prepare,) = cluster.commands(name, PrepareTask)
        (arrange,) = cluster.commands(name, ArrangeTask)
        assert isinstance(prepare, PrepareTask)
        assert isinstance(arrange, ArrangeTask)
        assert ",".join(prepare.gpus) == prepare.env["CUDA_VISIBLE_DEVICES"] == mine
        assert arrange.env["CUDA_VISIBLE_DEVICES"] == mine
        assert arrange.env["MUSTER_GPUS_PER_NODE"] == "2"
        assert arrange.env["MUSTER_NUM_GPUS"] == "4"
        assert "NVIDIA_VISIBLE_DEVICES" not in arrange.env
        at = arrange.argv.index("--nproc-per-node")
        assert arrange.argv[at + 1] == "2"
        assert "--numa-binding" not in arrange.argv


def test_explain_says_which_job_has_to_end() -> None:
    cluster = Cluster(pools=STRICT)
    join(cluster, "a")
    for limit_s in (600.0, 60.0, None):
        cluster.submit(part(2, time_limit_s=limit_s))
    cluster.submit(part(4, time_limit_s=100.0))
    cluster.submit(part(6))
    cluster.submit(part(1, time_limit_s=5.0))
    # Two are free; those of job 2 come first.
    verdict = explain(cluster.state, cluster.job(4), cluster.now).nodes[0]
    assert verdict.reason.text == (
        "has 2 of 8 GPUs free: jobs 1, 2 and 3 have the rest; it is available when job 2 ends"
    )
    assert verdict.job == 2
    assert verdict.free_by is not None
    explained = explain(cluster.state, cluster.job(4), cluster.now)
    assert explained.starts_by == verdict.free_by
    # Six are there with the end of job 1 and the two before it.
    explained = explain(cluster.state, cluster.job(5), cluster.now)
    assert explained.nodes[0].job == 1
    assert explained.starts_by is not None
    behind = explain(cluster.state, cluster.job(6), cluster.now).nodes[0]
    assert behind.reason.code == "queue"
    cluster.cancel(4)
    cluster.cancel(5)
    cluster.submit(part(8))
    unknown = explain(cluster.state, cluster.job(7), cluster.now)
    assert unknown.nodes[0].reason.text.endswith("; job 3 has no time limit")
    assert "job 3 has no time limit" in unknown.forecast


def test_the_view_of_a_shared_node() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(2))
    cluster.submit(part(4))
    node = cluster.state.nodes[NodeName("a")]
    shown = node_view(node, cluster.now)
    assert (shown.state.code, shown.state.text) == (
        "shared",
        "runs jobs 1 and 2; 2 of 8 GPUs free",
    )
    assert (shown.job, shown.jobs, shown.gpus, shown.gpus_used) == (1, (1, 2), 8, 6)
    # The second has a socket of its own.
    assert [it.job for it in shown.devices] == [1, 1, None, None, 2, 2, 2, 2]
    assert job_summary(cluster.state, cluster.job(2), cluster.now).gpus == 4
    tasks = job_view(cluster.state, cluster.job(1), cluster.now).attempts[0].tasks
    assert tasks[0].gpus == (uuid(0), uuid(1))
    cluster.submit(part(2))
    assert node_view(node, cluster.now).state.code == "busy"
    cluster.submit(part(None))
    assert job_summary(cluster.state, cluster.job(4), cluster.now).gpus is None


# --- over restarts -----------------------------------------------------------------------------


def test_a_new_coordinator_knows_who_has_which_gpu() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(2))
    cluster.submit(part(3))
    replayed = cluster.replayed()
    mine = {name: node.holders for name, node in cluster.state.nodes.items()}
    assert {name: node.holders for name, node in replayed.nodes.items()} == mine
    again = Cluster(replayed)
    join(again, "a")
    again.submit(part(3))
    assert set(numbers(again, 3)) == set(range(8)) - set(numbers(again, 1)) - set(numbers(again, 2))
    assert check(again.state) == []


def test_a_placement_of_an_older_release_has_whole_nodes() -> None:
    cluster = Cluster()
    join(cluster, "a")
    old = msgspec.json.decode(
        b'{"type":"AttemptPlaced","job":1,"attempt":1,"nodes":["a"]}', type=f.Fact
    )
    apply(cluster.state, f.JobSubmitted(JobId(1), part(2), "ada"), 0.0)
    apply(cluster.state, old, 0.0)
    cluster.submit(part(2))
    assert not cluster.job(2).attempts
    assert check(cluster.state) == []


def test_a_lost_node_gives_all_of_its_parts_back() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(2, retry={"infra": 0}))
    cluster.submit(part(2, retry={"infra": 0}))
    cluster.run_gang(1)
    cluster.run_gang(2)
    cluster.leave("a")
    cluster.declare_lost("a")
    assert [cluster.shown(job) for job in (1, 2)] == [JobState.LOST] * 2
    assert cluster.state.nodes[NodeName("a")].holders == {}


def test_a_node_that_forgot_its_tasks_has_lost_all_of_them() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(2, retry={"infra": 0}))
    cluster.submit(part(2, retry={"infra": 0}))
    cluster.run_gang(1)
    cluster.run_gang(2)
    join(cluster, "a")
    assert [cluster.shown(job) for job in (1, 2)] == [JobState.LOST] * 2


def test_the_end_of_one_is_not_the_end_of_the_other() -> None:
    cluster = Cluster()
    join(cluster, "a")
    cluster.submit(part(4))
    cluster.submit(part(4))
    first, second = cluster.run_gang(1), cluster.run_gang(2)
    cluster.end(first[0], ExitStatus(3))
    cluster.clean(first[0], exit=ExitStatus(3))
    assert cluster.shown(1) is JobState.FAILED
    assert cluster.shown(2) is JobState.RUNNING
    assert list(cluster.state.nodes[NodeName("a")].holders) == [(2, 1)]
    cluster.finish(second[0])
    assert cluster.shown(2) is JobState.SUCCEEDED


# --- NUMA --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "outcome"),
    [
        (("2.13.0+cu130", "2.9.0"), None),
        (("", ""), None),
        (("2.8.0", "2.8.1"), "never_started"),
        (("2.13.0", "2.8.1"), "infra"),
    ],
)
def test_numa_binding_needs_a_torchrun_that_has_it(
    versions: tuple[str, str], outcome: str | None
) -> None:
    cluster = Cluster()
    for name in "ab":
        join(cluster, name)
    cluster.submit(part(2, nodes=2, resources={"numa_binding": "node"}, retry={"infra": 0}))
    for rank, version in enumerate(versions):
        cluster.prepare(task(1, 1, rank), fingerprint=Fingerprint(torch=version))
    cause = cluster.job(1).attempts[0].cause
    if outcome is None:
        assert cause is None
        (arrange,) = cluster.commands("a", ArrangeTask)
        assert isinstance(arrange, ArrangeTask)
        at = arrange.argv.index("--numa-binding")
        assert arrange.argv[at + 1] == "node"
    else:
        assert cause is not None
        assert cause.outcome.value == outcome
        assert "numa_binding: node needs PyTorch 2.9 or newer" in cause.text


def test_a_cluster_that_is_full_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart finds it node by node, and each time the first of the queue is asked for."""
    cluster = Cluster()
    for name in "ab":
        join(cluster, name)
        cluster.submit(part(8))
    cluster.submit(part(1))

    def looked(*_: object) -> None:
        raise AssertionError("every node was judged")

    monkeypatch.setattr(scheduler, "place", looked)
    join(cluster, "a", tasks=(TaskReport(task(1, 1, 0), TaskState.ASSIGNED),))
    assert not cluster.job(3).attempts


def test_room_beside_a_job_whose_gpu_has_failed_is_seen() -> None:
    cluster = Cluster()
    join(cluster, "a", 4)
    cluster.submit(part(2))
    cluster.submit(part(2, priority=10))
    cluster.submit(part(2, priority=20))
    cluster.cancel(2)
    cluster.clean(task(2, 1, 0))
    sick = [gpu(0, fault="does not answer"), gpu(1, fault="does not answer"), gpu(2), gpu(3)]
    join(cluster, "a", devices=tuple(sick), tasks=(TaskReport(task(1, 1, 0), TaskState.ASSIGNED),))
    assert numbers(cluster, 3) == [2, 3]
    assert check(cluster.state) == []


def test_room_beside_a_job_whose_gpu_is_not_there_any_more_is_seen() -> None:
    cluster = Cluster()
    join(cluster, "a", 4)
    cluster.submit(part(1))
    cluster.observe("a", devices=tuple(gpu(at) for at in range(1, 4)))
    cluster.submit(part(3))
    assert numbers(cluster, 2) == [1, 2, 3]
    assert check(cluster.state) == []


def test_gpus_that_are_all_far_from_each_other_are_chosen_too() -> None:
    """An agent may report so many; there was one level of recursion for each."""
    far = [
        GpuDevice(pci=f"{number:04x}:00:00.0", uuid=f"GPU-{number}", model="x", numa_node=number)
        for number in range(1024)
    ]
    assert len(choose(far, 1015)) == 1015
