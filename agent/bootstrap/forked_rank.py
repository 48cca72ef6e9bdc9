"""A forked process becomes a rank like one that was started cold.

One stand-alone file for Python 3.9 or newer, run by the bootstrap in the job's interpreter.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import io
import mmap
import os
import runpy
import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

LOG_FOLDER_FD = 63
# <linux/prctl.h>
_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
# With a pointer instead of a number, the names for Fortran end in `_` or `_64_`.
_OPENBLAS = [
    [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
    for prefix in ("", "scipy_")
    for suffix in ("", "64_")
]
# The kernel shows the block of `show_as` for as long as the process lives.
_kept: list[Any] = []


class _Map(ctypes.Structure):
    """struct prctl_mm_map: the places of a process's parts, as /proc shows them."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk"),
                *("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv"),
            )
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


# Positions in /proc/self/stat, counted from the state.
_STAT = {
    "start_code": 23,
    "end_code": 24,
    "start_stack": 25,
    "start_data": 42,
    "end_data": 43,
    "start_brk": 44,
}


def show_as(argv: list[str], env: dict[str, str]) -> None:
    """Make /proc/PID/cmdline and environ show these. Raises OSError if the kernel cannot.

    ps, py-spy and Muster's own sweeps read them.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    texts = b"".join(os.fsencode(f"{name}={text}") + b"\0" for name, text in env.items())
    # The kernel shows private memory only.
    block = mmap.mmap(-1, len(words) + len(texts) + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(words + texts)
    start = ctypes.c_char.from_buffer(block)
    _kept.append((block, start))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    first = ctypes.addressof(start)
    new = _Map(
        **{name: int(fields[at]) for name, at in _STAT.items()},
        brk=libc.sbrk(0),
        arg_start=first,
        arg_end=first + len(words),
        env_start=first + len(words),
        env_end=first + len(words) + len(texts),
        exe_fd=0xFFFFFFFF,
    )
    size = ctypes.c_ulong(ctypes.sizeof(new))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(new), size, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(os.path.basename(argv[0]).encode()[:15]), 0, 0, 0)


def rehearse() -> None:
    """Do what a rank does that may fail on this node. Raises OSError if the kernel cannot do it."""
    show_as([sys.executable], dict(os.environ))
    set_threads(sys.modules["torch"].get_num_threads())
    _start_pools()


def arrange(request: dict[str, Any], go: int, tell: int, stdout: int, stderr: int) -> None:
    """Give this process the descriptors, session, environment and names of the rank."""
    # Folders may have changed since the gate.
    importlib.invalidate_caches()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (LOG_FOLDER_FD, go, tell):
            try:
                os.close(int(name))
            except OSError:
                # The descriptor of the listing itself.
                continue
    os.set_inheritable(LOG_FOLDER_FD, True)
    if request["session"]:
        os.setsid()
    argv, env = request["argv"], request["env"]
    known = {*request["known"], *env}
    # The imports of a cold rank would add these.
    added = {name: value for name, value in os.environ.items() if name not in known}
    os.environ.clear()
    os.environ.update({**env, **added})
    show_as(argv, env)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv
    _seed()
    # Python keeps that of the process that forked.
    main: Any = threading.current_thread()
    main._set_native_id()
    _start_pools()
    _follow_number_of_threads()


def await_start(go: int, tell: int) -> None:
    """Report this process's pid, and wait for a byte from `go`. If none comes, end this process."""
    os.write(tell, b"%d" % os.getpid())
    os.close(tell)
    if not os.read(go, 1):
        os._exit(1)
    os.close(go)


def run(argv: list[str]) -> None:
    """Run the program of `argv`, which is the interpreter, -u, and a script or -m and a module.

    Exceptions propagate, so that the interpreter ends as it does after any program: with its hooks,
    exit code and signal. Tracebacks begin at the program.
    """
    sys.argv[:] = argv[2:]
    module = argv[3] if argv[2] == "-m" else None
    if not getattr(sys.flags, "safe_path", False):
        script_folder = os.path.dirname(os.path.realpath(argv[2]))
        sys.path.insert(0, script_folder if module is None else os.getcwd())
    main = _fresh_main()
    try:
        if module is None:
            _run_script(main, argv[2])
        else:
            del sys.argv[1]
            # Its private name, because it is what `python -m` itself calls.
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit:
        raise
    except BaseException as error:
        hook, trace = sys.excepthook, _of_program(error.__traceback__)

        def show(kind: Any, value: BaseException, _: Any) -> None:
            sys.excepthook = hook
            hook(kind, value.with_traceback(trace), trace)

        sys.excepthook = show
        raise


def _run_script(main: ModuleType, path: str) -> None:
    full = os.path.join(os.getcwd(), path)
    main.__file__ = full
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
    with io.open_code(full) as file:
        source = file.read()
    exec(compile(source, full, "exec", dont_inherit=True), main.__dict__)  # noqa: S102


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    # The interpreter runs the old one until the end.
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    return main


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def _seed() -> None:
    """Give this process random states of its own, as after a cold start.

    os.fork seeds `random` itself.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(None)
    torch = sys.modules["torch"]
    torch.default_generator.seed()
    # Seeds that wait for the first use of a GPU: a preloaded module's would reach every rank.
    for devices in (torch.cuda, getattr(torch, "xpu", None)):
        waiting = getattr(devices, "_lazy_seed_tracker", None)
        if waiting is not None:
            waiting.__init__()


def set_threads(number: int) -> None:
    """Set the number of threads that the libraries would have read from OMP_NUM_THREADS.

    OpenBLAS starts its pool for that, and ends it at the next fork.
    """
    torch = sys.modules["torch"]
    torch.set_num_threads(_limited_by_mkl(number, os.path.dirname(str(torch.__file__))))
    # OpenBLAS applies the same limit when it reads the variable: the available processors.
    number = min(number, len(os.sched_getaffinity(0)))
    for _, set_number in _openblas():
        set_number(number)


def _limited_by_mkl(number: int, folder: str) -> int:
    """The number that torch takes from MKL if OMP_NUM_THREADS is `number`: at most one a core."""
    try:
        library = ctypes.CDLL(os.path.join(folder, "lib", "libtorch_cpu.so"))
        # torch sets these two, and MKL would answer by them.
        library.MKL_Set_Num_Threads_Local(0)
        library.MKL_Set_Dynamic(1)
        library.omp_set_num_threads(number)
        return int(library.MKL_Get_Max_Threads())
    except (OSError, AttributeError):
        # A build without MKL.
        return number


def _start_pools() -> None:
    """Start the pools of OpenBLAS, which would otherwise wait for the first product after a fork.

    A library that is loaded starts its pool at once.
    """
    for get_number, set_number in _openblas():
        if get_number() > 1:
            set_number(get_number())


def _openblas() -> list[list[Any]]:
    """The functions of each loaded OpenBLAS that get and set its number of threads."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line[line.index("/") :].strip() for line in file if "openblas" in line}
    found = []
    for path in paths:
        library = ctypes.CDLL(path)
        for names in _OPENBLAS:
            functions = [getattr(library, name, None) for name in names]
            if None not in functions:
                found.append(functions)
    return found


class _FirstImport:
    """Stands for the spec of a loaded module until the program imports that module.

    An import statement reads `_initializing` of the spec of a module that it finds loaded.
    """

    def __init__(self, module: Any, react: Any) -> None:
        self._module, self._spec, self._react = module, module.__spec__, react
        module.__spec__ = self

    def __getattr__(self, name: str) -> Any:
        if name == "_initializing" and self._module.__spec__ is self:
            self._module.__spec__ = self._spec
            self._react()
        return getattr(self._spec, name)


def _follow_number_of_threads() -> None:
    """Set the number of threads when the program sets OMP_NUM_THREADS before it imports torch.

    torch is loaded already here. A cold rank's torch would read the variable at its import.
    """
    put = os.putenv

    def putenv(name: Any, value: Any) -> None:
        put(name, value)
        text = os.fsdecode(value)
        if os.fsdecode(name) == "OMP_NUM_THREADS" and text.isdecimal() and int(text) > 0:
            set_threads(int(text))

    def end() -> None:
        if os.putenv is putenv:
            os.putenv = put

    os.putenv = putenv
    _FirstImport(sys.modules["torch"], end)
