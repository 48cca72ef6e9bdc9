"""Traffic evidence: the verdict on what carried a gang's traffic, and when it ends the attempt."""

from __future__ import annotations

from typing import Final

from muster.fabric.counters import imbalance, tcp_share
from muster.fabric.traffic_verdict import Proof, evidence_text, judge, planned, summary
from muster.protocol.observations.traffic import (
    Carrier,
    FabricReport,
    JobProof,
    NodeProof,
    ProofView,
)
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.spec.model import JobSpec, Rdma, env_on_node
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.state import Attempt, Job, Task

VERDICTS_MAX: Final = 100


def watched(attempt: Attempt) -> bool:
    """True if the gang has several nodes and any of them has RDMA hardware or GPUs."""
    return len(attempt.present) > 1 and any(_has_any(task) for task in attempt.present)


def _has_any(task: Task) -> bool:
    prepared = task.prepared
    if prepared is None:
        return False
    fabric = prepared.fabric
    known = fabric is not None and bool(
        fabric.ports or fabric.missing or fabric.stops or fabric.unfit
    )
    return known or prepared.gpus > 0


def nccl_lines(spec: JobSpec, task: Task, watched: bool) -> dict[str, str]:
    """Variables that make NCCL log its choices to a file, as traffic evidence.

    If the job sets NCCL's own debug variables, they are left alone.
    """
    asked = env_on_node(spec, task.rank)
    if "NCCL_DEBUG" in asked or "NCCL_DEBUG_FILE" in asked:
        return {}
    folder = "" if task.prepared is None else task.prepared.nccl
    if not watched or not folder:
        return {"NCCL_DEBUG": "INFO"} if spec.nccl_debug else {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "ALL" if spec.nccl_debug else "INIT,ENV,NET",
        "NCCL_DEBUG_FILE": f"{folder}/%h.%p",
    }


def recorder(task: Task, watched: bool) -> dict[str, str]:
    """Variables for torch's flight recorder, which keeps a gang's last collectives.

    It writes them to the task's NCCL folder, on a byte in its pipe or when a collective times out.
    """
    folder = "" if task.prepared is None else task.prepared.nccl
    if not watched or not folder:
        return {}
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/fr_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/frp_",
    }


def proof_of(
    attempt: Attempt, task: Task | None = None, report: FabricReport | None = None
) -> Proof:
    """The traffic verdict from all nodes' reports; `report` is the newest, from `task`.

    An earlier verdict is kept if its evidence is no longer known.
    """
    found = judge([(one.node, report if one is task else one.traffic) for one in attempt.present])
    if found.carrier is Carrier.UNKNOWN and attempt.proof is not None:
        return attempt.proof
    return found


def traffic_facts(
    job: Job, attempt: Attempt, task: Task, report: FabricReport | None, *, disk_full: bool
) -> tuple[list[f.Fact], Cause | None]:
    """The verdict after a node's report, and the cause if a job that requires RDMA has to stop now.

    While only some nodes have reported NCCL's choice, one of the others may be at fault. Then the
    job stops later (`Limits.traffic_wait_s`). Each recorded verdict stays in the history of the
    job, so an attempt has `VERDICTS_MAX` at most.
    """
    if report is None or report == task.traffic or not task.present:
        return [], None
    same = task.traffic is not None and summary(report) == summary(task.traffic)
    if same and (attempt.proof is not None or task.rank > 0):
        # Because one node is enough to check changed amounts, even of a thousand.
        return [], None
    facts: list[f.Fact] = []
    proof = proof_of(attempt, task, report)
    known = attempt.proof.carrier if attempt.proof is not None else Carrier.UNKNOWN
    if proof.carrier is not known and attempt.verdicts < VERDICTS_MAX and not disk_full:
        facts.append(f.TrafficJudged(job.id, attempt.number, proof))
    said = [bool(report.nccl.decided)]
    said += [bool(t.traffic and t.traffic.nccl.decided) for t in attempt.present if t is not task]
    settled = all(said) or not any(said)
    return facts, not_used(job, proof) if settled else None


def not_used(job: Job, proof: Proof) -> Cause | None:
    """Return why a job that requires RDMA has to stop; None if it may go on."""
    if job.spec.rdma is not Rdma.REQUIRED or proof.carrier is not Carrier.TCP or not proof.firm:
        return None
    return Cause(
        CauseCode.RDMA_NOT_USED,
        Outcome.INFRA,
        f"the job requires RDMA, but its traffic uses TCP: {proof.text.removeprefix('TCP: ')}",
        node=proof.node,
        node_fault=proof.node is not None,
    )


def proof_line(job: Job, attempt: Attempt) -> ProofView | None:
    """The traffic verdict in one line, for a person.

    Returns None if no rank was released, or if no node has RDMA hardware or a GPU.
    """
    if attempt.released_at is None:
        return None
    if attempt.proof is None and not watched(attempt):
        return None
    proof = proof_of(attempt)
    text = proof.text
    if proof.carrier is Carrier.TCP and job.spec.rdma is Rdma.OFF:
        text += " (as set in the job: rdma: off)"
    return ProofView(proof.carrier, text)


def _unwatched(attempt: Attempt) -> ProofView:
    if len(attempt.present) < 2:
        return ProofView(Carrier.UNKNOWN, proof_of(attempt).text)
    why = "no node has an RDMA device or a GPU: the traffic between them uses TCP"
    return ProofView(Carrier.UNKNOWN, f"not monitored, because {why}")


def proof_view(job: Job, attempt: Attempt) -> JobProof:
    """The traffic verdict of an attempt with the figures of all nodes."""
    proof = proof_line(job, attempt) or _unwatched(attempt)
    return JobProof(
        verdict=proof.verdict,
        text=proof.text,
        nodes=tuple(
            _node_proof(task, task.traffic) for task in attempt.tasks if task.traffic is not None
        ),
    )


def _node_proof(task: Task, report: FabricReport) -> NodeProof:
    ports = planned(report)
    return NodeProof(
        node=task.node,
        node_rank=task.rank,
        said=report.unheard or evidence_text(report.nccl),
        seconds=report.seconds,
        samples=report.samples,
        gaps=report.gaps,
        gap_s=report.gap_s,
        peak=report.peak,
        imbalance=imbalance(ports),
        tcp_share=tcp_share(ports, report.sockets),
        shared=report.shared,
        ports=report.ports,
        sockets=report.sockets,
        nccl=report.nccl,
    )
