"""The classes of what a program can fail of."""

from __future__ import annotations

import enum


class FailureKind(enum.StrEnum):
    """Classes of failures. The words are stable: scripts compare them."""

    OOM_KILLED = "oom_killed"
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    SHARED_MEMORY = "shared_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    DISK_FULL = "disk_full"
    NO_PROGRAM = "no_program"
    NO_SCRIPT = "no_script"
    NO_MODULE = "no_module"
    IMPORT_FAILED = "import_failed"
    DRIVER_TOO_OLD = "driver_too_old"
    NO_CUDA = "no_cuda"
    GPU_FAILED = "gpu_failed"
    CUDA_ERROR = "cuda_error"
    PORT_IN_USE = "port_in_use"
    NO_CONNECTION = "no_connection"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    PEER_LOST = "peer_lost"
    EXEC_FORMAT = "exec_format"
    PERMISSION_DENIED = "permission_denied"
    SEGFAULT = "segfault"
    ABORTED = "aborted"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    KILLED = "killed"
    TERMINATED = "terminated"
    EXCEPTION = "exception"
    EXITED = "exited"
