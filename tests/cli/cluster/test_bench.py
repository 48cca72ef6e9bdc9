"""`muster bench allreduce` beside a coordinator that is scripted: numbers, verdicts, exit codes."""

import json

import pytest

from muster.bench.results import Run
from muster.cli.cluster.bench import NO_PROOF
from muster.http.fabric import FabricView, NodeFabricView, PlannedPort, PlanView
from muster.protocol.observations.traffic import Carrier, JobProof
from muster.protocol.states import JobState
from tests.cli.conftest import Run as Muster
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

ABOUT = '# {"ranks":16,"nodes":2,"backend":"nccl","device":"H100","torch":"2.9","nccl":"2.27.5"}\n'


def row(size: int, busbw: float, wrong: int = 0) -> str:
    return f" {size} {size // 4} float sum 20 1000.0 990.0 900.0 {busbw / 1.875} {busbw} {wrong}\n"


def fabric(job: int, rdma: str, proof: JobProof | None = None) -> FabricView:
    """Two nodes with two HCAs of 400 Gbit/s each, which are used where RDMA is."""
    ports = tuple(
        PlannedPort(rail, f"mlx5_{rail}:1", None, None, 400.0, None, (), None, ())
        for rail in (0, 1)
    )
    used = () if rdma == "off" else ports
    nodes = tuple(
        NodeFabricView(name, rank, used, (), "eth0", f"10.0.0.{rank}", None, None, {}, None, ())
        for rank, name in enumerate(("a", "b"))
    )
    plan = PlanView("rdma" if used else "tcp", "as planned", (), nodes, (), None)
    return FabricView(job, 1, rdma, plan, proof)


def ran(fake: FakeCoordinator, *lines: str, runs: int = 1, code: int = 0) -> None:
    """The next jobs are over already, and have printed that."""
    state = JobState.FAILED if code else JobState.SUCCEEDED
    with fake.script.changed:
        for number in range(runs):
            job = 42 + number
            fake.script.jobs[job] = ended(job_view(job), state, code, "rank 0 exited with 3")
            fake.script.fabrics[job] = fabric(job, "off" if number else "preferred")
        fake.script.logs = [record(number, line) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize(
    ("busbw", "code", "said"), [(80.0, 0, "pass: 80.0"), (79.9, 1, "BELOW THE LINE: 79.9")]
)
def test_the_line_decides_the_code(
    fake: FakeCoordinator, run: Muster, busbw: float, code: int, said: str
) -> None:
    ran(fake, ABOUT, row(1 << 20, 3.0), row(1 << 30, busbw))
    done = run("bench", "allreduce")
    assert done.returncode == code, done.stderr
    text = done.stdout.decode()
    assert f"{said} GB/s, and 80.0 GB/s is the line: 80% of the 800 Gbit/s" in text
    assert "planned:   as planned" in text
    assert f"transport: {NO_PROOF}" in text


def proof(verdict: Carrier, text: str) -> JobProof:
    return JobProof(verdict=verdict, text=text, nodes=())


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (proof(Carrier.PROVED, "RDMA proved: 2/2 HCAs"), 0),
        (proof(Carrier.TCP, "TCP: NCCL used NET/Socket on b"), 1),
        (proof(Carrier.UNKNOWN, "unknown: no counters"), 0),
    ],
)
def test_the_verdict_stands_beside_the_numbers_and_tcp_never_passes(
    fake: FakeCoordinator, run: Muster, said: JobProof, code: int
) -> None:
    ran(fake, ABOUT, row(1 << 30, 90.0), runs=2)
    fake.script.fabrics = {job: fabric(job, "preferred", said) for job in (42, 43)}
    done = run("bench", "allreduce")
    assert done.returncode == code
    assert f"transport: {said.text}\n" in done.stdout.decode()
    (only,) = json.loads(run("bench", "allreduce", "--json").stdout)["runs"]
    assert (only["verdict"], only["transport"]) == (said.verdict.value, said.text)


def test_a_wrong_sum_is_a_failure(fake: FakeCoordinator, run: Muster) -> None:
    ran(fake, ABOUT, row(1 << 30, 90.0, wrong=1))
    done = run("bench", "allreduce")
    assert done.returncode == 1
    assert b"WRONG: 1 elements" in done.stdout


def test_a_job_that_failed_ends_with_its_code_and_is_not_run_again(
    fake: FakeCoordinator, run: Muster
) -> None:
    ran(fake, ABOUT, row(1 << 20, 3.0), runs=2, code=3)
    done = run("bench", "allreduce", "--compare-tcp", "--json")
    assert done.returncode == 3
    (only,) = json.loads(done.stdout)["runs"]
    assert only["job"] == 42
    assert len(fake.script.submitted) == 1
    assert b"rank 0 exited with 3" in done.stderr


def test_both_runs_in_json(fake: FakeCoordinator, run: Muster) -> None:
    ran(fake, ABOUT, row(1 << 30, 90.0), runs=2)
    done = run("bench", "allreduce", "--compare-tcp", "--rdma", "required", "--json")
    assert done.returncode == 0, done.stderr
    one, other = json.loads(done.stdout)["runs"]
    assert set(one) == set(Run.__struct_fields__)
    assert (one["rdma"], one["line"]["gb_s"], one["line"]["passed"]) == ("required", 80.0, True)
    assert (other["rdma"], other["line"]["gb_s"]) == ("off", None)
    sent = [mapping for _, mapping in fake.script.submitted.values()]
    assert [mapping["rdma"] for mapping in sent] == ["required", "off"]


def test_lines_that_come_in_pieces(fake: FakeCoordinator, run: Muster) -> None:
    whole = ABOUT + row(1 << 20, 3.0) + row(1 << 30, 90.0)
    ran(fake, *(whole[at : at + 37] for at in range(0, len(whole), 37)))
    done = run("bench", "allreduce", "--json")
    (only,) = json.loads(done.stdout)["runs"]
    assert [measured["busbw_gb_s"] for measured in only["rows"]] == [3.0, 90.0]


def test_the_options_are_in_the_job(fake: FakeCoordinator, run: Muster) -> None:
    ran(fake, ABOUT, row(1 << 30, 90.0))
    options = ["--nodes-named", "gpu-03,gpu-07", "--sizes", "64M,1G", "-e", "NCCL_ALGO=Ring"]
    run("bench", "allreduce", *options, "--pool", "big", "--python", "/venv", "--iters", "7")
    ((_, sent),) = fake.script.submitted.values()
    assert sent["nodes"] == 2
    assert sent["placement"] == {"include": ["gpu-03", "gpu-07"]}
    assert sent["env"] == {"NCCL_ALGO": "Ring"}
    assert (sent["pool"], sent["python"]) == ("big", "/venv")
    words = ["allreduce.py", "--sizes", "67108864,1073741824", "--iters", "7", "--warmups", "5"]
    assert sent["run"] == words
    assert "torch.distributed" in sent["setup"][-1]


def test_gloo_goes_over_tcp_and_nobody_has_to_prove_it(fake: FakeCoordinator, run: Muster) -> None:
    ran(fake, ABOUT.replace("nccl", "gloo", 1), row(1 << 30, 1.0), runs=2)
    done = run("bench", "allreduce")
    assert "transport: TCP: gloo supports nothing else\n" in done.stdout.decode()
    (only,) = json.loads(run("bench", "allreduce", "--json").stdout)["runs"]
    assert (only["verdict"], only["transport"]) == ("tcp", "TCP: gloo supports nothing else")


def test_rdma_of_which_job(run: Muster) -> None:
    done = run("explain", "rdma")
    assert done.returncode == 2
    assert b"muster explain rdma JOB" in done.stderr


def test_the_time_limit_is_printed(fake: FakeCoordinator, run: Muster) -> None:
    ran(fake, ABOUT, row(1 << 30, 90.0))
    with fake.script.changed:
        over = ended(job_view(42, time_limit_s=3600.0), JobState.SUCCEEDED, 0)
        fake.script.jobs[42] = over
    said = run("bench", "allreduce").stderr
    assert b"its time limit is 1h, the default of every benchmark" in said
