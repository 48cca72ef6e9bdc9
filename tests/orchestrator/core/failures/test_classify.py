"""Failures by their real last words: the class, the line that is quoted, what is said to do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.protocol.failure_kinds import FailureKind
from muster.protocol.outcome import ExitStatus
from orchestrator.core.failures.classify import (
    CONSEQUENCES,
    JUDGED_CHARS_MAX,
    LINE_CHARS_MAX,
    judge,
)
from orchestrator.core.failures.taxonomy import RULES

FAILED = ExitStatus(1)


def traceback(last: str, *after: str) -> str:
    """The text that torch's ranks print."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/x/train.py", line 7, in <module>',
        "    main()",
        "    ~~~~^^",
        last,
        *after,
    )
    return "".join(f"[rank0]: {line}\n" for line in lines)


# Verbatim ends of standard error, with paths and addresses replaced.
WRITTEN = (
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
            "a total capacity of 79.10 GiB of which 1.02 GiB is free."
        ),
        FailureKind.CUDA_OUT_OF_MEMORY,
        "batch",
    ),
    (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
        FailureKind.HOST_OUT_OF_MEMORY,
        "data loader workers",
    ),
    (
        (
            "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is "
            "possible that dataloader's workers are out of shared memory. Please try to raise "
            "your shared memory limit."
        ),
        FailureKind.SHARED_MEMORY,
        "/dev/shm",
    ),
    (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 4000000000000000 bytes."
        ),
        FailureKind.HOST_OUT_OF_MEMORY,
        "memory",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/ckpt/a.pt'",
        FailureKind.DISK_FULL,
        "make room",
    ),
    (
        "ModuleNotFoundError: No module named 'flash_attn'",
        FailureKind.NO_MODULE,
        "no module flash_attn",
    ),
    (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        FailureKind.IMPORT_FAILED,
        "libcudart.so.12",
    ),
    (
        "ImportError: cannot import name 'shard_map' from 'jaxlike' (/x/jaxlike/__init__.py)",
        FailureKind.IMPORT_FAILED,
        "jaxlike of the job's Python has no shard_map",
    ),
    ("AssertionError: Torch not compiled with CUDA enabled", FailureKind.NO_CUDA, "build for CPUs"),
    ("RuntimeError: No CUDA GPUs are available", FailureKind.NO_CUDA, "nvidia-smi"),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        FailureKind.DRIVER_TOO_OLD,
        "update the driver",
    ),
    ("RuntimeError: CUDA error: invalid device ordinal", FailureKind.NO_CUDA, "nproc_per_node"),
    (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        FailureKind.GPU_FAILED,
        "Xid",
    ),
    (
        "RuntimeError: CUDA error: device-side assert triggered",
        FailureKind.CUDA_ERROR,
        "CUDA_LAUNCH_BLOCKING",
    ),
    (
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
            "local network address. port: 29778, useIpv6: false, code: -98, name: EADDRINUSE, "
            "message: address already in use"
        ),
        FailureKind.PORT_IN_USE,
        "MASTER_PORT",
    ),
    (
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 2000ms "
            "while trying to connect to (10.0.0.1, 29779)."
        ),
        FailureKind.NO_CONNECTION,
        "firewall",
    ),
    (
        (
            "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
            "peer [10.0.0.2]:22419. This is typically caused by a remote worker crashing."
        ),
        FailureKind.PEER_LOST,
        "lost the connection to another rank",
    ),
    (
        (
            "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
            "[10.0.0.2]:47005: Connection reset by peer."
        ),
        FailureKind.PEER_LOST,
        "lost the connection to another rank",
    ),
    (
        "PermissionError: [Errno 13] Permission denied: '/data/x'",
        FailureKind.PERMISSION_DENIED,
        "/data/x",
    ),
    ("OSError: [Errno 8] Exec format error: './tool'", FailureKind.EXEC_FORMAT, "#!/bin/sh"),
    (
        "RuntimeError: ibv_create_cq: Cannot allocate memory",
        FailureKind.LOCKED_MEMORY,
        "LimitMEMLOCK=infinity",
    ),
    ("OSError: [Errno 116] Stale file handle: '/data/x'", FailureKind.STORAGE_FAILED, "mounts"),
    ("OSError: [Errno 122] Disk quota exceeded", FailureKind.DISK_FULL, "quota"),
    ("OSError: [Errno 24] Too many open files: 'a'", FailureKind.FILE_LIMIT, "file_system"),
    ("RuntimeError: can't start new thread", FailureKind.PROCESS_LIMIT, "OMP_NUM_THREADS"),
    (
        "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found",
        FailureKind.IMPORT_FAILED,
        "needs GLIBC_2.38",
    ),
    (
        "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E",
        FailureKind.IMPORT_FAILED,
        "lacks _ZN3c105ErrorC2E",
    ),
    (
        "ImportError: attempted relative import with no known parent",
        FailureKind.IMPORT_FAILED,
        "setup",
    ),
    (
        "RuntimeError: Error(s) in loading state_dict for GPT:",
        FailureKind.BAD_CHECKPOINT,
        "the one before it",
    ),
    (
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', "
            "port=443): Max retries exceeded with url: /x"
        ),
        FailureKind.DOWNLOAD_FAILED,
        "HF_HOME",
    ),
    ("ValueError: the loss is nan", FailureKind.NOT_FINITE, "learning rate"),
    (
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        FailureKind.NOT_FINITE,
        "clip gradients",
    ),
    (
        (
            "torch.distributed.DistBackendError: NCCL error: ncclInvalidUsage: Duplicate GPU "
            "detected : rank 1 and rank 0 both on CUDA device 3b000"
        ),
        FailureKind.DUPLICATE_GPU,
        "LOCAL_RANK",
    ),
    (
        "RuntimeError: Mismatched NCCL version detected : rank 0 has 22703 and rank 8 has 22105",
        FailureKind.NCCL_VERSIONS,
        "LD_LIBRARY_PATH",
    ),
    (
        "RuntimeError: CUDA initialization: system not yet initialized",
        FailureKind.GPU_FAILED,
        "fabric manager",
    ),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        FailureKind.CUDA_ERROR,
        "compute capability",
    ),
    (
        (
            "torch.distributed.DistBackendError: NET/IB: Got completion from peer 10.0.0.2<4791> "
            "with status=12 opcode=0 len=0 vendor err 129"
        ),
        FailureKind.RDMA_FAILED,
        "NCCL_IB_GID_INDEX",
    ),
    (
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        FailureKind.NO_CONNECTION,
        "rendezvous",
    ),
    (
        (
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. "
            "1/3 clients joined."
        ),
        FailureKind.NO_CONNECTION,
        "of 3 processes only 1 came to the store",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclInternalError: Internal",
        FailureKind.NCCL_FAILED,
        "--nccl-debug",
    ),
    (
        "torch.distributed.DistBackendError: [Rank 0] Timed out waiting 600000ms for recv",
        FailureKind.COLLECTIVE_TIMEOUT,
        "another rank did not take part",
    ),
    ("PermissionError: Permission denied", FailureKind.PERMISSION_DENIED, "may not do that"),
    ("ValueError: the loss is too high", FailureKind.EXCEPTION, ""),
    ("__main__.Oops: I gave up", FailureKind.EXCEPTION, ""),
)


@pytest.mark.parametrize(("line", "kind", "advice"), WRITTEN, ids=lambda it: str(it)[:40])
def test_the_last_line_of_a_traceback_decides(line: str, kind: FailureKind, advice: str) -> None:
    verdict = judge(FAILED, traceback(line))
    assert verdict.kind is kind
    assert verdict.said == (line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}...")
    assert advice in verdict.advice
    assert bool(verdict.advice) == bool(advice)


# Last lines of processes that print no Python traceback.
PLAIN = (
    ("train.py: error: unrecognized arguments: --lr 3", FailureKind.BAD_ARGUMENTS),
    ("bash: line 1: nvidia-smu: command not found", FailureKind.NO_PROGRAM),
    ("python: can't open file '/x/train.py': [Errno 2] No such file or directory", "no_script"),
    ("python: can't open file '/x/train.py': [Errno 13] Permission denied", "permission_denied"),
    ("/usr/bin/python: can't find '__main__' module in '/x'", FailureKind.NO_SCRIPT),
    ("terminate called without an active exception", FailureKind.ABORTED),
)
# The machine is at fault for these kinds, the user for all others.
INFRA = {
    FailureKind.LOCKED_MEMORY,
    FailureKind.STORAGE_FAILED,
    FailureKind.GPU_FAILED,
    FailureKind.DISK_FULL,
}


@pytest.mark.parametrize(("line", "kind"), PLAIN)
def test_the_exit_status_decides(line: str, kind: str) -> None:
    assert judge(ExitStatus(2), f"{line}\n").kind == kind


def test_every_row_of_the_taxonomy_is_shown_by_an_example() -> None:
    """A row that no example reaches is dead, or stands behind a more general row."""
    reached = set()
    for line in (*(row[0] for row in WRITTEN), *(row[0] for row in PLAIN)):
        reached.add(next((i for i, rule in enumerate(RULES) if rule.search(line)), -1))
    lacking = [RULES[i].sign for i in range(len(RULES)) if i not in reached]
    assert not lacking, f"give each an example in WRITTEN: {lacking}"


def test_every_class_comes_from_somewhere_and_says_what_to_do() -> None:
    from_table = {rule.kind for rule in RULES}
    by_signal = {judge(ExitStatus(signal=n), "").kind for n in (4, 6, 7, 8, 9, 11, 15)}
    others = {FailureKind.OOM_KILLED, FailureKind.EXCEPTION, FailureKind.EXITED}
    others.add(FailureKind.CODE_NOT_FETCHED)  # by a refusal
    assert from_table | by_signal | others == set(FailureKind)
    assert all(len(rule.advice) > 20 for rule in RULES)


@pytest.mark.parametrize(("line", "kind", "advice"), WRITTEN, ids=lambda it: str(it)[:40])
def test_the_owner_of_each_failure(line: str, kind: FailureKind, advice: str) -> None:
    of_machine = kind in INFRA and "quota" not in line
    assert judge(FAILED, traceback(line)).infra is of_machine


MEMCG = (
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:19283740kB, "
    "anon-rss:12582912kB, file-rss:1048576kB, shmem-rss:0kB, UID:1000 pgtables:3kB"
)
GLOBAL = MEMCG.removeprefix("Memory cgroup out").join(("Out", ""))
XIDS = (
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.", True),
    ("NVRM: Xid (PCI:0000:3b:00): 48, DBE (double bit error) ECC Error", True),
    ("NVRM: Xid (PCI:0000:3b:00): 94, pid=4711, name=python, Contained: CE User Channel", True),
    ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004)", True),
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name=python, Graphics SM Warp Exception", False),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 8, MMU Fault", False),
    ("NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, name=python, Ch 8", False),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=4711, name=python, Contained: SM (0x1)", True),
    ("NVRM: GPU at PCI:0000:3b:00: GPU-1: GPU has fallen off the bus.", True),
)


@pytest.mark.parametrize(("line", "infra"), XIDS)
def test_a_line_of_the_gpu_s_driver_goes_before_what_the_program_says(
    line: str, infra: bool
) -> None:
    verdict = judge(FAILED, traceback("RuntimeError: CUDA error: unknown"), kernel=line)
    assert (verdict.kind, verdict.infra) == (FailureKind.GPU_FAILED, infra)
    assert "3b:00" in verdict.said
    number = line.partition("): ")[2].partition(",")[0]
    assert f"Xid {number}" in verdict.said or "fallen off" in verdict.said
    assert ("nvidia-smi" if infra else "CUDA_LAUNCH_BLOCKING") in verdict.advice


@pytest.mark.parametrize("line", [MEMCG, GLOBAL, *(line for line, _ in XIDS)])
def test_a_line_that_a_name_was_made_to_look_like_says_nothing(line: str) -> None:
    forged = f"process '/home/eve/{line}' started with executable stack"
    assert judge(FAILED, "", kernel=forged) == judge(FAILED, "")


def test_a_fault_of_the_machine_goes_first() -> None:
    lines = "\n".join(line for line, _ in reversed(XIDS[:6]))
    assert judge(FAILED, "", kernel=f"{MEMCG}\n{lines}").infra


@pytest.mark.parametrize(("line", "why"), [(MEMCG, "cgroup's limit"), (GLOBAL, "node had no more")])
def test_a_kill_for_memory_is_reported_with_its_numbers(line: str, why: str) -> None:
    killed = judge(ExitStatus(signal=9), "epoch 3", kernel=line)
    assert killed.kind is FailureKind.OOM_KILLED
    assert "process 4711 (python) with 13.0 GiB resident" in killed.said
    assert why in killed.said
    worker = judge(FAILED, traceback("RuntimeError: DataLoader worker (pid 4711)"), kernel=line)
    assert (worker.kind, worker.said) == (FailureKind.HOST_OUT_OF_MEMORY, killed.said)


@pytest.mark.parametrize(
    ("how", "written", "kernel", "oom"),
    [
        (ExitStatus(signal=9), "epoch 3", "", True),
        (ExitStatus(signal=9), "epoch 3", MEMCG, False),
        (FAILED, traceback("RuntimeError: DataLoader worker (pid 4711)"), MEMCG, False),
        (FAILED, traceback("MemoryError"), "", False),
    ],
)
def test_a_memory_limit_that_was_reached_is_named_with_the_key_to_raise(
    how: ExitStatus, written: str, kernel: str, *, oom: bool
) -> None:
    verdict = judge(how, written, kernel=kernel, oom=oom, memory_max=10 * 10**9)
    assert verdict.kind in (FailureKind.OOM_KILLED, FailureKind.HOST_OUT_OF_MEMORY)
    assert "reached its memory limit on that node, 10GB: raise `resources.memory`" in verdict.advice
    # It says nothing of another failure.
    assert judge(how, traceback("ValueError: no"), memory_max=1) == judge(
        how, traceback("ValueError: no")
    )


def test_the_name_of_what_was_killed_may_have_brackets() -> None:
    killed = judge(ExitStatus(signal=9), "", kernel=MEMCG.replace("(python)", "(pt data (x))"))
    assert "process 4711 (pt data (x)) with 13.0 GiB" in killed.said


def test_an_error_of_several_lines_and_the_warnings_after_it() -> None:
    """NCCL says on the second line what it was, and torch warns of what matters no more."""
    written = traceback(
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251",
        "ncclRemoteError: A call failed possibly due to a remote process exiting prematurely",
    )
    written += (
        "[rank0]:[W1121 20:11:07.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: "
        "destroy_process_group() was not called before program exit\n"
    )
    verdict = judge(FAILED, written)
    assert verdict.kind is FailureKind.PEER_LOST
    assert verdict.said.startswith("torch.distributed.DistBackendError: NCCL error")


def test_lines_before_the_traceback_do_not_count() -> None:
    written = "retrying: Connection reset by peer\n" + traceback("ValueError: no such split")
    assert judge(FAILED, written).kind is FailureKind.EXCEPTION


def test_the_last_of_chained_exceptions_counts() -> None:
    written = traceback("ConnectionResetError: [Errno 104] Connection reset by peer")
    written += "\nDuring handling of the above exception, another exception occurred:\n\n"
    written += traceback("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB")
    assert judge(FAILED, written).kind is FailureKind.CUDA_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("how", "kind", "advice"),
    [
        (ExitStatus(signal=9), FailureKind.KILLED, "out-of-memory killer"),
        (ExitStatus(signal=11), FailureKind.SEGFAULT, "PYTHONFAULTHANDLER"),
        (ExitStatus(signal=15), FailureKind.TERMINATED, "not stopped by Muster"),
        (ExitStatus(signal=6), FailureKind.ABORTED, "NCCL_DEBUG"),
        (ExitStatus(signal=7), FailureKind.SHARED_MEMORY, "/dev/shm"),
        (ExitStatus(code=7), FailureKind.EXITED, ""),
    ],
)
def test_signals_without_output(how: ExitStatus, kind: FailureKind, advice: str) -> None:
    verdict = judge(how, "epoch 3: 40 %")
    assert verdict.kind is kind
    assert advice in verdict.advice


def test_a_kill_that_its_cgroup_counted_is_reported_as_one() -> None:
    verdict = judge(ExitStatus(signal=9), "epoch 3", oom=True)
    assert verdict.kind is FailureKind.OOM_KILLED
    assert "memory" in verdict.advice


def test_a_watchdog_that_aborts_says_why() -> None:
    written = (
        "[rank0]:[E1121 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    )
    verdict = judge(ExitStatus(signal=6), written)
    assert verdict.kind is FailureKind.COLLECTIVE_TIMEOUT
    assert verdict.kind in CONSEQUENCES


def test_a_shell_s_last_words() -> None:
    verdict = judge(ExitStatus(127), "bash: line 1: nvidia-smu: command not found\n")
    assert verdict.kind is FailureKind.NO_PROGRAM
    assert "nvidia-smu" in verdict.advice


def test_a_line_of_any_length_is_cut() -> None:
    for piece in ("x", "a: ", "ImportError: ", ":", "[rank0]: "):
        assert len(judge(FAILED, piece * 100_000).said) < LINE_CHARS_MAX + 10
    assert judge(FAILED, "").said == ""


@pytest.mark.parametrize(
    ("argv", "kind", "named"),
    [
        (("{}/nope.py",), FailureKind.NO_SCRIPT, "nope.py"),
        (("{}",), FailureKind.NO_SCRIPT, "is a folder"),
        (("-m", "no.such.module"), FailureKind.NO_MODULE, "no module no"),
        (("-c", "import no_such_module"), FailureKind.NO_MODULE, "no_such_module"),
    ],
)
def test_messages_of_python_itself(
    tmp_path: Path, argv: tuple[str, ...], kind: FailureKind, named: str
) -> None:
    words = [word.format(tmp_path) for word in argv]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    verdict = judge(ExitStatus(done.returncode), done.stderr)
    assert verdict.kind is kind, done.stderr
    assert named in verdict.advice


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (
            (
                "import socket, torch.distributed as d; s = socket.create_server(('', 0));"
                "d.TCPStore('127.0.0.1', s.getsockname()[1], 1, True)"
            ),
            FailureKind.PORT_IN_USE,
        ),
        (
            (
                "import datetime, socket, torch.distributed as d; s = socket.socket();"
                "s.bind(('127.0.0.1', 0)); d.TCPStore('127.0.0.1', s.getsockname()[1], 2, False,"
                "timeout=datetime.timedelta(seconds=1))"
            ),
            FailureKind.NO_CONNECTION,
        ),
        ("import torch; torch.empty(10**15)", FailureKind.HOST_OUT_OF_MEMORY),
    ],
)
def test_messages_of_torch_itself(program: str, kind: FailureKind) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    verdict = judge(ExitStatus(done.returncode), done.stderr)
    assert verdict.kind is kind, done.stderr


@pytest.mark.torch
def test_a_torch_without_cuda() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.version.cuda:
        pytest.skip("this torch is built with CUDA")
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.zeros(1).cuda()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judge(ExitStatus(done.returncode), done.stderr).kind is FailureKind.NO_CUDA


def test_an_abort_at_the_exit_names_what_helps() -> None:
    """A program that has called destroy_process_group() is aborted as well."""
    verdict = judge(ExitStatus(signal=6), "terminate called without an active exception")
    assert verdict.kind is FailureKind.ABORTED
    assert "time.sleep(0.02)" in verdict.advice
    assert "destroy_process_group() alone does not" in verdict.advice


def test_no_rule_takes_long_over_a_text_that_nearly_matches() -> None:
    began = time.process_time()
    for rule in RULES:
        for begin in (rule.sign[: len(rule.sign) // 2], rule.sign[:-1], "ibv_reg_mr"):
            rule.search(begin + "a" * 8192)
            rule.search(begin * (8192 // len(begin)))
    # One such text took 16 s when a rule had three repetitions of the same characters in a row.
    assert time.process_time() - began < 8


def test_the_rules_see_only_the_beginning_of_a_long_line() -> None:
    for room, kind in ((0, FailureKind.DISK_FULL), (1, FailureKind.EXITED)):
        line = "Disk quota exceeded".rjust(JUDGED_CHARS_MAX + room)
        assert judge(FAILED, "x" + line[1:]).kind is kind
