"""Software for RDMA: libraries, kernel modules, GPUDirect, NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from agent.probe.fabric.fs_root import FsRoot, Unread
from muster.fabric.model import Software

_MODULES: Final = (
    "mlx5_core",
    "mlx5_ib",
    "mlx4_ib",
    "ib_uverbs",
    "ib_core",
    "ib_umad",
    "rdma_cm",
    "bnxt_re",
    "irdma",
    "efa",
    "nvidia",
    "nvidia_peermem",
    "ib_peer_mem",
    "gdrdrv",
)
SONAMES: Final = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
_LIBRARIES: Final = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
    "usr/local/lib",
)
_PEERMEM: Final = (
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
)
_DRIVER_VERSION: Final = re.compile(r"\b(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
# NVIDIA's packages have versions such as 24.10-1.1.4; the kernel's own driver has 5.0-0 or none.
_OFED: Final = re.compile(r"\d{1,2}\.\d{1,2}-\d+\.\d+.*")
_DMABUF_KERNEL: Final = (5, 12)
_NCCL_PACKAGE: Final = re.compile(r"nvidia_nccl_cu\d+-(\d+\.\d+\.\d+)[^/]*\.dist-info")
_UCX_PACKAGE: Final = re.compile(r"libucx(?:_cu\d+)?-(\d+\.\d+\.\d+)[^/]*\.dist-info")
_UCX_VERSION: Final = re.compile(r"^Version:\s*(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)
_UCX_FOLDERS: Final = ("opt/ucx/lib", "opt/hpcx/ucx/lib", "usr/mpi/gcc/ucx/lib")
_HOMES_MAX: Final = 256
_SETTING: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]{0,63})\s*=\s*(.{0,1024}?)\s*")


def software_of(
    tree: FsRoot, *, python: str | None = None, home: str | None = None, nccl: str | None = None
) -> Software:
    """`python` is the interpreter of jobs, `home` their user's home (None: any user's). `nccl` is a
    given version, which is then not looked for.
    """
    kernel = _text(tree, "proc/sys/kernel/osrelease")
    driver = _text(tree, "proc/driver/nvidia/version") or ""
    number = _DRIVER_VERSION.search(driver)
    core = _text(tree, "sys/module/mlx5_core/version")
    source = "from the command line"
    if nccl is None:
        nccl, source = _nccl(tree, python)
    return Software(
        kernel=kernel,
        os=_os(tree),
        nvidia_driver=number[1] if number else _text(tree, "sys/module/nvidia/version"),
        ofed=core if core is not None and _OFED.fullmatch(core) else None,
        modules=_modules(tree),
        libraries=libraries(tree, SONAMES),
        gpudirect=_gpudirect(tree, kernel, driver),
        nccl=nccl,
        nccl_source=source,
        nccl_conf=nccl_conf(tree, home),
        ucx=_ucx(tree, python),
    )


def libraries(tree: FsRoot, names: Iterable[str]) -> dict[str, str | None]:
    """Return the path of each library; empty if no library directory is visible."""
    folders = [folder for folder in _LIBRARIES if tree.exists(folder)]
    folders += [folder for folder in _configured(tree) if folder not in folders]
    if not folders:
        return {}
    found: dict[str, str | None] = {}
    for name in names:
        places = (f"{folder}/{name}" for folder in folders)
        found[name] = next((f"/{place}" for place in places if tree.exists(place)), None)
    return found


def nccl_conf(tree: FsRoot, home: str | None) -> dict[str, str]:
    """Return the settings that NCCL reads itself, `NAME` -> `value (from file)`: the environment
    overrides the user's file, which overrides the machine's.
    """
    found: dict[str, str] = {}
    users = [(f"{place}/.nccl.conf", tree.text_of_user) for place in _homes(tree, home)]
    for file, read in (*users, ("etc/nccl.conf", tree.text)):
        text = read(file)
        if isinstance(text, Unread):
            continue
        for line in text.splitlines():
            pair = _SETTING.fullmatch(line.partition("#")[0])
            if pair and pair[2].isprintable():
                found.setdefault(pair[1], f"{pair[2]} (from /{file})")
    return found


def _homes(tree: FsRoot, home: str | None) -> list[str]:
    if home is not None:
        return [home.strip("/")]
    names = tree.names("home")
    users = () if isinstance(names, Unread) else names[:_HOMES_MAX]
    return ["root", *(f"home/{name}" for name in sorted(users))]


def _modules(tree: FsRoot) -> dict[str, str]:
    """Return the loaded modules, with their versions if known."""
    found = {}
    for name in _MODULES:
        if tree.exists(f"sys/module/{name}"):
            found[name] = _text(tree, f"sys/module/{name}/version") or ""
    return found


def _gpudirect(tree: FsRoot, kernel: str | None, driver: str) -> str | None:
    """Return the GPUDirect support. Necessary, not sufficient: only NCCL's `GDRDMA` lines prove
    it.
    """
    if any(tree.exists(path) for path in _PEERMEM):
        return "peermem"
    if not driver:
        return None
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", kernel or "")
    recent = numbers is not None and (int(numbers[1]), int(numbers[2])) >= _DMABUF_KERNEL
    return "dmabuf" if recent and "Open Kernel Module" in driver else "none"


def _nccl(tree: FsRoot, python: str | None) -> tuple[str | None, str]:
    """Return the NCCL beside the jobs' interpreter, else the machine's. torch is not started."""
    if python is not None:
        for folder in _site_packages(tree, python):
            names = tree.names(folder)
            for name in () if isinstance(names, Unread) else names:
                package = _NCCL_PACKAGE.fullmatch(name)
                if package:
                    return package[1], f"/{folder}"
    for folder in _LIBRARIES:
        link = tree.link(f"{folder}/libnccl.so.2")
        version = "" if isinstance(link, Unread) else link.rpartition(".so.")[2]
        if re.fullmatch(r"\d+\.\d+\.\d+", version):
            return version, f"/{folder}"
    return None, "not found"


def _ucx(tree: FsRoot, python: str | None) -> str | None:
    """Return the UCX of the package beside the jobs' interpreter, else the machine's."""
    for folder in () if python is None else _site_packages(tree, python):
        names = tree.names(folder)
        for name in () if isinstance(names, Unread) else names:
            package = _UCX_PACKAGE.fullmatch(name)
            if package:
                return package[1]
    for folder in (*_LIBRARIES, *_UCX_FOLDERS):
        found = _UCX_VERSION.search(_text(tree, f"{folder}/pkgconfig/ucx.pc") or "")
        if found:
            return found[1]
    return None


def _site_packages(tree: FsRoot, python: str) -> Iterable[str]:
    """Return the site-packages of a virtual environment or installation, by its path alone."""
    prefix = python.strip("/").rpartition("/bin/")[0]
    for library in ("lib", "lib64"):
        names = tree.names(f"{prefix}/{library}".lstrip("/"))
        for name in () if isinstance(names, Unread) else sorted(names):
            if name.startswith("python3"):
                for last in ("site-packages", "dist-packages"):
                    yield f"{prefix}/{library}/{name}/{last}".lstrip("/")


def _configured(tree: FsRoot) -> Iterable[str]:
    """Return the directories that the administrator configured for the dynamic linker."""
    names = tree.names("etc/ld.so.conf.d")
    for name in () if isinstance(names, Unread) else sorted(names):
        text = tree.text(f"etc/ld.so.conf.d/{name}")
        for line in () if isinstance(text, Unread) else text.splitlines():
            folder = line.partition("#")[0].strip()
            if folder.startswith("/") and tree.exists(folder[1:]):
                yield folder[1:]


def _os(tree: FsRoot) -> str | None:
    text = tree.text("etc/os-release")
    if isinstance(text, Unread):
        return None
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    return fields.get("ID", "").strip('"') or None


def _text(tree: FsRoot, path: str) -> str | None:
    text = tree.text(path)
    return None if isinstance(text, Unread) else text
