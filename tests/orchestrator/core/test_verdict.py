"""Failures by their real last words: the class, the line that is quoted, what is said to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.protocol.failures import FailureKind
from muster.protocol.outcome import ExitStatus
from orchestrator.core.verdict import CONSEQUENCES, LINE_CHARS_MAX, judge

FAILED = ExitStatus(1)


def traceback(last: str, *after: str) -> str:
    """As torch's ranks print it."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/x/train.py", line 7, in <module>',
        "    main()",
        "    ~~~~^^",
        last,
        *after,
    )
    return "".join(f"[rank0]: {line}\n" for line in lines)


# Verbatim ends of standard error, but for paths and addresses.
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
    ("ValueError: the loss is nan", FailureKind.EXCEPTION, ""),
    ("__main__.Oops: I gave up", FailureKind.EXCEPTION, ""),
)


@pytest.mark.parametrize(("line", "kind", "advice"), WRITTEN, ids=lambda it: str(it)[:40])
def test_what_a_traceback_ends_with(line: str, kind: FailureKind, advice: str) -> None:
    verdict = judge(FAILED, traceback(line))
    assert verdict.kind is kind
    assert verdict.said == (line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}...")
    assert advice in verdict.advice
    assert bool(verdict.advice) == bool(advice)


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


def test_what_was_logged_before_the_traceback_does_not_count() -> None:
    written = "retrying: Connection reset by peer\n" + traceback("ValueError: no such split")
    assert judge(FAILED, written).kind is FailureKind.EXCEPTION


def test_of_chained_exceptions_the_last_counts() -> None:
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
def test_what_only_its_end_tells(how: ExitStatus, kind: FailureKind, advice: str) -> None:
    verdict = judge(how, "epoch 3: 40 %")
    assert verdict.kind is kind
    assert advice in verdict.advice


def test_a_kill_that_its_cgroup_counted_is_told_as_one() -> None:
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
def test_what_python_itself_says(
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
def test_what_torch_itself_says(program: str, kind: FailureKind) -> None:
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
