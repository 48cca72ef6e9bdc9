"""The taxonomy of failures: a table from output patterns to kind, blame and advice.

The first matching rule wins, so specific rules stand before general ones. A new kind of failure is
a new row here, with a piece of real output in its test. The event loop waits for the search, so a
pattern has no two unbounded repetitions of the same characters in a row.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.protocol.failure_kinds import FailureKind


class FailureRule(msgspec.Struct, frozen=True):
    """A rule of the taxonomy.

    `sign` is an example of the output, for readers. `advice` may refer to the groups of `pattern`
    as {0}, {1}. `infra`: the machine failed and not the program, so another node may help and the
    user's retry budget is not charged.
    """

    kind: FailureKind
    sign: str
    pattern: str
    advice: str
    infra: bool = False

    def search(self, text: str) -> re.Match[str] | None:
        """Search the text.

        The pattern is compiled on first use, because a starting coordinator has no failure to
        judge.
        """
        return re.search(self.pattern, text, re.IGNORECASE)


def _rule(
    kind: FailureKind, sign: str, pattern: str, advice: str, *, infra: bool = False
) -> FailureRule:
    return FailureRule(kind, sign, pattern, advice, infra)


IN_USE: Final = re.compile(r"EADDRINUSE|address already in use|\[Errno 98\]", re.IGNORECASE)
RULES: Final = (
    _rule(
        FailureKind.CUDA_OUT_OF_MEMORY,
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        r"CUDA out of memory|HIP out of memory|OutOfMemoryError|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
        "the memory of its GPU is exhausted: make the batch or the model's part smaller, or see "
        "with nvidia-smi on that node whether another process holds it",
    ),
    _rule(
        FailureKind.SHARED_MEMORY,
        "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory",
        r"insufficient shared memory|out of shared memory|unable to (?:open|write to|mmap).{0,80}"
        r"shared memory|torch_shm_manager|No space left on device.{0,40}/dev/shm"
        r"|/dev/shm.{0,80}No space left on device",
        "shared memory (/dev/shm) of the node is exhausted: use fewer data loader workers, or make "
        "/dev/shm larger there",
    ),
    _rule(
        FailureKind.LOCKED_MEMORY,
        "ibv_create_cq() failed: Cannot allocate memory",
        r"ibv_(?:create_cq|create_qp|reg_mr|alloc_pd|open_device).{0,120}Cannot allocate memory"
        r"|(?:ulimit|limit).{0,40}memlock|memlock.{0,40}limit|RLIMIT_MEMLOCK",
        "the process may lock too little memory for RDMA: see `ulimit -l` in a job there (muster "
        "doctor), and set LimitMEMLOCK=infinity in the agent's unit",
        infra=True,
    ),
    _rule(
        FailureKind.HOST_OUT_OF_MEMORY,
        "DataLoader worker (pid 4711) is killed by signal: Killed.",
        r"DefaultCPUAllocator: (?:can't|not enough)|^MemoryError\b|Cannot allocate memory"
        r"|DataLoader worker .{0,40}killed by signal: Killed|std::bad_alloc",
        "the main memory of the node is exhausted: use fewer data loader workers or a smaller "
        "batch, and see what else runs there",
    ),
    _rule(
        FailureKind.DISK_FULL,
        "OSError: [Errno 122] Disk quota exceeded",
        r"Disk quota exceeded|\[Errno 122\]",
        "a quota is exhausted: remove what is not needed, or ask for more",
    ),
    _rule(
        FailureKind.DISK_FULL,
        "OSError: [Errno 28] No space left on device",
        r"No space left on device|\[Errno 28\]",
        "a disk is full: make room where the program writes",
        infra=True,
    ),
    _rule(
        FailureKind.STORAGE_FAILED,
        "OSError: [Errno 116] Stale file handle",
        r"Stale file handle|\[Errno 116\]|Input/output error|\[Errno 5\]|Transport endpoint is not "
        r"connected: '|Read-only file system|\[Errno 30\]",
        "a file system of that node fails: see its mounts and disks (dmesg -T)",
        infra=True,
    ),
    _rule(
        FailureKind.FILE_LIMIT,
        "OSError: [Errno 24] Too many open files",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        "it has reached the limit of open files: use fewer data loader workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    _rule(
        FailureKind.PROCESS_LIMIT,
        "RuntimeError: can't start new thread",
        r"can't start new thread|pthread_create failed|BlockingIOError: \[Errno 11\]"
        r"|(?:fork|thread).{0,60}Resource temporarily unavailable",
        "it may have no more processes or threads on that node: set OMP_NUM_THREADS, use fewer "
        "data loader workers, or raise the limit (processes_max of its agent, TasksMax, ulimit -u)",
    ),
    _rule(
        FailureKind.NO_PROGRAM,
        "bash: line 1: nvidia-smu: command not found",
        r"(?<![^\s:])([^\s:]{1,200}): command not found",
        "there is no command {0} in the PATH of the job on that node: install it, or name its path",
    ),
    _rule(
        FailureKind.NO_SCRIPT,
        "can't open file '/x/train.py': [Errno 2] No such file or directory",
        r"can't open file '([^']+)': \[Errno (?:2|20)\]",
        "there is no {0} on that node: see that `run` and `workdir` name it, and that every node "
        "has the folder",
    ),
    _rule(
        FailureKind.NO_SCRIPT,
        "can't find '__main__' module in '/x'",
        r"can't find '__main__' module in '([^']+)'",
        "{0} is a folder and no script: name a file in `run`, or use `-m`",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        "can't open file '/x/train.py': [Errno 13] Permission denied",
        r"can't open file '([^']+)': \[Errno 13\]",
        "the user of the job may not read {0} on that node: change its mode or owner",
    ),
    _rule(
        FailureKind.NO_MODULE,
        "ModuleNotFoundError: No module named 'flash_attn'",
        r"No module named '?([\w.]+)'?",
        "the job's Python has no module {0}: install it in the environment that `python` names, or "
        "in `setup`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        "ImportError: libcudart.so.12: cannot open shared object file",
        r"ImportError: ([\w.+-]+\.so[\w.]*): cannot open shared object",
        "the library {0} is missing on that node: install it there, or name an environment that "
        "has it in `python`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        "ImportError: cannot import name 'shard_map' from 'jax'",
        r"ImportError: cannot import name '(\w+)' from '([\w.]+)'",
        "{1} of the job's Python has no {0}, most often because it is of another version: install "
        "the right one in the environment that `python` names, or in `setup`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.38' not found",
        r"version [`'](GLIBC\w*_[\d.]+)' not found",
        "a library needs {0}, which that node's system is too old for: use a build for it",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E",
        r"undefined symbol: (\w+)",
        "an extension was built against another torch or CUDA (it lacks {0}): rebuild it in "
        "the environment that `python` names, or in `setup`",
    ),
    _rule(
        FailureKind.IMPORT_FAILED,
        "ImportError: attempted relative import with no known parent package",
        r"\bImportError\b",
        "something cannot be imported: see the environment that `python` names, and `setup`",
    ),
    _rule(
        FailureKind.BAD_ARGUMENTS,
        "train.py: error: unrecognized arguments: --lr 3",
        r"error: (?:unrecognized arguments|the following arguments are required|argument "
        r"[^\n:]+): ?"
        r"([^\n]{0,200})",
        "the program does not take these arguments ({0}): see `run`, and the program's --help",
    ),
    _rule(
        FailureKind.BAD_CHECKPOINT,
        "RuntimeError: Error(s) in loading state_dict for GPT",
        r"Error\(s\) in loading state_dict|PytorchStreamReader failed|failed finding central "
        r"directory"
        r"|invalid header or archive is corrupted|SafetensorError|UnpicklingError",
        "a checkpoint is damaged or of another model: try the one before it, and write checkpoints "
        "under another name first, then rename",
    ),
    _rule(
        FailureKind.DOWNLOAD_FAILED,
        "Max retries exceeded with url: /api/models",
        r"Max retries exceeded with url|GatedRepoError|RepositoryNotFoundError"
        r"|LocalEntryNotFoundError"
        r"|(?:401|403|404|429) Client Error|We couldn't connect to 'https?://"
        r"|URLError: <urlopen error|Temporary failure in name resolution",
        "something could not be downloaded: do it once before the job (`setup`, a shared cache as "
        "HF_HOME), or see the nodes' way out and the token in `secrets` or `env`",
    ),
    _rule(
        FailureKind.NOT_FINITE,
        "ValueError: the loss is nan",
        r"(?:loss|gradients?|grad norm|norm|output|weights?)\b.{0,40}\b(?:is|are|became|was"
        r"|contains?)"
        r"\b.{0,20}\b(?:nan|inf|infinite|non-?finite|not finite)\b|returned nan values"
        r"|FloatingPointError|nan(?:s)? detected|found (?:nan|inf)\b|non-finite (?:loss|grad)",
        "the training has diverged, or a batch was bad: lower the learning rate or clip "
        "gradients, and "
        "look at the step that did it; more tries from the same checkpoint end the same way",
    ),
    _rule(
        FailureKind.DUPLICATE_GPU,
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
        r"Duplicate GPU detected",
        "two ranks use one GPU: let the program take the device of LOCAL_RANK "
        "(torch.cuda.set_device), and see that nproc_per_node is not more than the node's GPUs",
    ),
    _rule(
        FailureKind.NCCL_VERSIONS,
        "Mismatched NCCL version detected",
        r"Mismatched NCCL version|NCCL version mismatch|mismatch.{0,40}NCCL version",
        "the nodes have different NCCL versions: give all the same torch, and remove NCCL from "
        "LD_LIBRARY_PATH and LD_PRELOAD",
    ),
    _rule(
        FailureKind.DRIVER_TOO_OLD,
        "The NVIDIA driver on your system is too old (found version 11040)",
        r"driver on your system is too old|driver version is insufficient"
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|Driver/library version mismatch",
        "the NVIDIA driver of that node does not fit this build of torch: update the driver, or "
        "use a torch built for an older CUDA",
    ),
    _rule(
        FailureKind.NO_CUDA,
        "AssertionError: Torch not compiled with CUDA enabled",
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL"
        r"|module 'torch\._C' has no attribute '_cuda",
        "this torch is a build for CPUs: name an environment with a CUDA build in `python`, or use "
        "gloo and no GPU",
    ),
    _rule(
        FailureKind.NO_CUDA,
        "RuntimeError: No CUDA GPUs are available",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no GPUs found"
        r"|torch\.cuda\.is_available\(\) is False|no CUDA-capable device|CUDA unknown error",
        "the process sees no GPU: try nvidia-smi on that node, and see that the job asks for its "
        "GPUs and that CUDA_VISIBLE_DEVICES does not hide them",
    ),
    _rule(
        FailureKind.NO_CUDA,
        "CUDA error: invalid device ordinal",
        r"invalid device ordinal",
        "the process asks for a GPU that is not there: `nproc_per_node` may be more than the GPUs "
        "of that node, or the program ignores LOCAL_RANK",
    ),
    _rule(
        FailureKind.GPU_FAILED,
        "CUDA error: uncorrectable ECC error encountered",
        r"uncorrectable (?:ECC|NVLink) error|GPU has fallen off the bus|CUDA error: unspecified "
        r"launch failure|CUDA error: hardware",
        "the GPU reports an error of its own: see nvidia-smi -q on that node, and its kernel's log "
        "for an Xid",
        infra=True,
    ),
    _rule(
        FailureKind.GPU_FAILED,
        "CUDA initialization: system not yet initialized",
        r"NVLink.{0,40}(?:error|failure)|CUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE"
        r"|HARDWARE_STACK_ERROR|SYSTEM_NOT_READY)|system not yet initialized",
        "the GPU or its NVLink fabric is not well: see nvidia-smi -q and the fabric manager there",
        infra=True,
    ),
    _rule(
        FailureKind.CUDA_ERROR,
        "CUDA error: no kernel image is available for execution on the device",
        r"no kernel image is available",
        "this torch has no code for the GPU of that node: use a build for its compute capability",
    ),
    _rule(
        FailureKind.CUDA_ERROR,
        "CUDA error: device-side assert triggered",
        r"CUDA error: |CUDA kernel errors might be",
        "run it once with env CUDA_LAUNCH_BLOCKING=1: then the traceback shows which call failed",
    ),
    _rule(
        FailureKind.PORT_IN_USE,
        "The server socket has failed to listen on any local network address, name: EADDRINUSE",
        IN_USE.pattern,
        "another process listens on that port: take MASTER_PORT as it is given, and ports that the "
        "program opens itself from outside the cluster's range",
    ),
    _rule(
        FailureKind.COLLECTIVE_TIMEOUT,
        "Watchdog caught collective operation timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"
        r"|monitoredBarrier|wait timeout after \d+ms",
        "a collective did not end in its time, as another rank did not take part: look for a rank "
        "that is stuck, slower, or on another branch of the program",
    ),
    _rule(
        FailureKind.RDMA_FAILED,
        "Call to ibv_modify_qp failed with 110 Connection timed out",
        r"IBV_WC_RETRY_EXC_ERR|IBV_WC_RNR_RETRY_EXC_ERR|status=1[23] (?:opcode|vendor|len)"
        r"|got completion.{0,80}(?:error|status)|ibv_modify_qp.{0,60}(?:failed|timed out)"
        r"|Got async (?:fatal )?event",
        "RDMA to another rank broke: that rank has ended, or a link is down or badly set "
        "(muster show "
        "--fabric, muster check); leave NCCL_IB_GID_INDEX and NCCL_IB_HCA unset, as a wrong one "
        "does this",
    ),
    _rule(
        FailureKind.NO_CONNECTION,
        "The client socket has timed out after 2000ms while trying to connect to (10.0.0.1, 29779)",
        r"timed out after \d+ms while trying to connect|connectFullMesh failed|No route to host"
        r"|Network is unreachable|Connection refused|Gloo connect.{0,20} failed|ncclSystemError"
        r"|ibv_\w{1,40} failed|Call to connect .{0,60}failed|gaierror|Name or service not known",
        "it could not connect to another rank: see that the nodes reach each other on every port "
        "(firewall), and that NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the right network",
    ),
    _rule(
        FailureKind.NO_CONNECTION,
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        r"RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError",
        "not every node came to the rendezvous in its time: look for one whose program began "
        "late or "
        "not at all",
    ),
    _rule(
        FailureKind.NO_CONNECTION,
        "DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.",
        r"Timed out after \d+ seconds waiting for (?:clients|workers)\.? (\d+)/(\d+)",
        "of {1} processes only {0} came to the store in time: look for a node whose program began "
        "late or not at all, and leave RANK, WORLD_SIZE and MASTER_ADDR as they are given: a "
        "WORLD_SIZE that counts nodes, or GPUs that no rank has, waits for ranks that never come",
    ),
    _rule(
        FailureKind.PEER_LOST,
        "Connection closed by peer [10.0.0.2]:22419",
        r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe"
        r"|ncclRemoteError|remote process exited|socket (?:was )?closed|NCCL communicator was "
        r"aborted|Failed to recv, got 0 bytes|Connection was likely closed",
        "it lost the connection to another rank, and none has said why: look for one that ended "
        "early, or for a node or a network that failed",
    ),
    _rule(
        FailureKind.NCCL_FAILED,
        "NCCL error in: x.cpp:1, ncclInternalError: Internal check failed",
        r"ncclInternalError|ncclInvalidUsage|ncclInvalidArgument|ncclUnhandledCudaError"
        r"|NCCL error",
        "NCCL gave up: its own words come with `muster submit --nccl-debug` (muster logs --nccl)",
    ),
    _rule(
        FailureKind.EXEC_FORMAT,
        "OSError: [Errno 8] Exec format error: './tool'",
        r"Exec format error|is no program: |\[Errno 8\]|cannot execute binary file",
        "the program is not of this machine's kind, or has no first line such as #!/bin/sh",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        "PermissionError: [Errno 13] Permission denied: '/data/x'",
        r"PermissionError: \[Errno 13\] Permission denied: '?([^'\n]+)'?",
        "the user of the job may not use {0}: change its mode or owner on that node",
    ),
    _rule(
        FailureKind.PERMISSION_DENIED,
        "bash: line 1: ./run.sh: Permission denied",
        r"Permission denied",
        "the user of the job may not do that on that node: change the mode or owner of the file",
    ),
    _rule(
        FailureKind.ABORTED,
        "terminate called without an active exception",
        r"terminate called without an active exception",
        "its threads still ran as it ended, most often gloo's: a race in torch (2.13) when a "
        "collective ends within milliseconds of the program (pytorch #56297, #190489); a barrier "
        "and a short pause before the end help, such as time.sleep(0.02), "
        "destroy_process_group() alone does not",
    ),
)
