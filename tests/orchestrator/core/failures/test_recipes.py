"""Mistakes in well-known recipes for jobs on many nodes, E1 to E16: the class of a rank's failure,
or the test that shows that the mistake cannot be made here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import ExitStatus
from orchestrator.core.failures.classify import judge

ROOT = Path(__file__).parents[4]

# The error, the output of a rank, the class, and a word of the hint.
FAILS = (
    (
        "E6: a dead link that NCCL reports after minutes",
        (
            "torch.distributed.DistBackendError: NET/IB: Got completion from peer 10.0.0.2<4791> "
            "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor err 129"
        ),
        FailureKind.RDMA_FAILED,
        "a link is down",
    ),
    (
        "E7: a GID index that somebody has forced",
        (
            "torch.distributed.DistBackendError: Call to ibv_modify_qp failed with 61 No data "
            "available, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, "
            "local GID ::"
        ),
        FailureKind.RDMA_FAILED,
        "leave NCCL_IB_GID_INDEX and NCCL_IB_HCA unset",
    ),
    (
        "E9: GID tables that differ",
        (
            "torch.distributed.DistBackendError: Call to ibv_modify_qp failed with 110 Connection "
            "timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, "
            "local GID ::ffff:10.0.0.1, remote GID fe80::1"
        ),
        FailureKind.RDMA_FAILED,
        "leave NCCL_IB_GID_INDEX",
    ),
    (
        "E11: two jobs on one port",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE"
        ),
        FailureKind.PORT_IN_USE,
        "take MASTER_PORT as it is given",
    ),
    (
        "E12: a worker that never came",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        FailureKind.NO_CONNECTION,
        "began late or not at all",
    ),
    (
        "E13: a WORLD_SIZE that does not count ranks",
        (
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. "
            "2/8 clients joined."
        ),
        FailureKind.NO_CONNECTION,
        "of 8 processes only 2 came",
    ),
    (
        "E15: too little memory that may be locked",
        (
            "[1668693503.473099] [n1:1188443:0] ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() "
            "failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to "
            "'unlimited' (current: 8192 kbytes)"
        ),
        FailureKind.LOCKED_MEMORY,
        "LimitMEMLOCK=infinity",
    ),
)
# The error, and the tests that show why it is no rank's failure.
CANNOT = (
    (
        "E1: a setting for the interface that nothing reads; jobs get the ones that are read",
        "tests/fabric/test_hca_selection.py::test_sockets_have_the_form_that_each_library_wants",
    ),
    (
        "E2: NCCL_IB_CUDA_SUPPORT, which NCCL has no more; it is never set",
        "tests/fabric/test_hca_selection.py::test_every_port_is_decided_and_nothing_is_set_that_is_to_be_left",
    ),
    (
        "E3: a number for NCCL_NET_GDR_LEVEL; it is left to NCCL",
        "tests/fabric/test_hca_selection.py::test_every_port_is_decided_and_nothing_is_set_that_is_to_be_left",
    ),
    (
        "E4: threads of sockets on RDMA; they are left to NCCL",
        "tests/fabric/test_hca_selection.py::test_every_port_is_decided_and_nothing_is_set_that_is_to_be_left",
    ),
    (
        "E5: the prefix of a name as NCCL_IB_HCA; ports are named whole, after a =",
        "tests/fabric/test_hca_selection.py::test_sockets_have_the_form_that_each_library_wants",
    ),
    (
        "E8: a GID index found by a line of shell; it is read for each port, none on InfiniBand",
        "tests/fabric/test_gids.py::test_infiniband_needs_no_index",
    ),
    (
        "E10: a node rank that torchrun ignores; the rendezvous is static but for elastic jobs",
        "tests/orchestrator/core/gangs/test_launch.py::test_torchruns_words",
    ),
    (
        "E14: torchrun that kills ranks within their grace",
        "tests/agent/shims/test_grace.py::test_torchrun_does_not_cut_the_grace_of_a_stop",
    ),
    (
        "E16: an agent that is started again and takes its jobs along",
        "tests/agent/daemon/test_survival.py::test_a_killed_agent_finds_its_task_again",
    ),
    (
        "E16: and systemd that ends what the agent has started",
        "tests/systemd/test_units.py::test_promised_settings_are_present",
    ),
)


@pytest.mark.parametrize(("error", "said", "kind", "advice"), FAILS, ids=lambda it: str(it)[:3])
def test_failures_of_ranks_are_shown_by_their_class(
    error: str, said: str, kind: FailureKind, advice: str
) -> None:
    verdict = judge(ExitStatus(1), f"{said}\n")
    assert verdict.kind is kind, error
    assert advice in verdict.advice
    assert verdict.infra is (kind is FailureKind.LOCKED_MEMORY)


@pytest.mark.parametrize(("error", "shown"), CANNOT, ids=lambda it: str(it)[:40])
def test_an_impossible_mistake_names_the_test_that_shows_it(error: str, shown: str) -> None:
    file, _, name = shown.partition("::")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    there = {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, functions)
    }
    assert name in there, error


def test_each_error_has_a_class_or_a_reason() -> None:
    numbers = {error.partition(":")[0] for error, *_ in (*FAILS, *CANNOT)}
    assert numbers == {f"E{number}" for number in range(1, 17)}
