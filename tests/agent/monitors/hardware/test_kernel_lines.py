"""Lines of the kernel log on hardware, as NVIDIA's driver and the kernel write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.monitors.hardware.kernel_lines import KernelEvent, Reader, Record, record
from agent.shims.systemd import unit_of
from muster.protocol.observations.hardware_events import Grade
from muster.protocol.observations.xids import NOTES, SHOWN, grade_of

# Lines from user reports and from the fixtures of health checkers.
CRITICAL = [
    (
        (
            "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus."
        ),
        "GPU 0000:1b:00.0: Xid 79, the GPU has fallen off the bus",
    ),
    (
        "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        "GPU 0000:1b:00.0: it has fallen off the bus",
    ),
    (
        (
            "NVRM: The NVIDIA GPU 0000:09:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this "
            "system has\\x0aNVRM: fallen off the bus and is not responding to commands."
        ),
        "GPU 0000:09:00.0: it has fallen off the bus",
    ),
    (
        "NVRM: Xid (PCI:0000:03:00): 48, pid=91237, name=python, DBE (double bit error)",
        "GPU 0000:03:00.0: Xid 48, a double-bit ECC error (DBE (double bit error))",
    ),
    (
        (
            "NVRM: Xid (PCI:0000:05:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error "
            "detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        ),
        (
            "GPU 0000:05:00.0: Xid 74, an NVLink error (NVLink: fatal error detected on link "
            "6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0))"
        ),
    ),
    (
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python, Contained: SM (0x1). "
            "RST: No, D-RST: No"
        ),
        "GPU 0000:01:00.0: Xid 94, a contained ECC error (Contained: SM (0x1). RST: No, D-RST: No)",
    ),
    ("NVRM: Xid (PCI:0000:86:00): 95, pid='<unknown>', name=<unknown>, Uncontained: LTC", None),
    ("NVRM: Xid (PCI:0000:86:00): 64, pid='<unknown>', name=<unknown>, Row remapper", None),
    ("NVRM: Xid (PCI:0000:41:00): 119, pid=1, name=python3, Timeout waiting for RPC", None),
    ("NVRM: Xid (0000:03:00): 62, 0a0b", None),
    (
        (
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004c3806 "
            "0x0 0x0 0x0 0x0 0x0 0x0)"
        ),
        None,
    ),
    (
        (
            "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
            "(Node Reboot Required)"
        ),
        None,
    ),
    ("NVRM: Xid (PCI:0000:07:00): 9999, something that nobody has met", None),
]
OTHERS = [
    ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp", "xid 13"),
    ("NVRM: Xid (PCI:0000:cb:00): 31, pid=7, name=a b, Ch 8, MMU Fault: ENGINE GRAPHICS", "xid 31"),
    ("NVRM: Xid (PCI:0000:cb:00): 43, pid=1234, name=python, Ch 00000010", "xid 43"),
    ("NVRM: Xid (PCI:0000:cb:00): 45, pid=1234, name=python, Ch 00000010", "xid 45"),
    ("NVRM: Xid (PCI:0000:cb:00): 68, pid=1234, name=python, Ch 00000010", "xid 68"),
    ("NVRM: Xid (PCI:0000:cb:00): 109, pid=1, name=pt_main_thread, CTX SWITCH TIMEOUT", "xid 109"),
    ("NVRM: Xid (PCI:0000:cb:00): 63, pid='<unknown>', name=<unknown>, Row remap", "xid 63"),
    ("NVRM: Xid (PCI:0000:cb:00): 92, pid='<unknown>', name=<unknown>, High single-bit", "xid 92"),
    ("NVRM: Xid (PCI:0008:01:00): 145, RLW_REMAP  Nonfatal XC1 i0 Link 00 (0x0 0x0)", "xid 145"),
    (
        (
            "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset "
            "Required) to 0x0 (None)"
        ),
        "xid 154",
    ),
    ("mlx5_core 0000:98:00.1: Port: 1 Link DOWN", "link  down"),
    ("mlx5_core 0000:1a:00.0 ibp26s0: Link down", "link ibp26s0 down"),
    ("ixgbe 0000:02:00.0 eth0: NIC Link is Down", "link eth0 down"),
    ("mlx5_core 0000:1a:00.0 ibp26s0: Link up", "link ibp26s0 up"),
]
NOTHING = [
    "",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
    "NVRM: GPU at PCI:0000:1b:00: GPU-2c7c1f0a-0000-0000-0000-000000000000",
    "NVRM: Xid errors are documented elsewhere: 79, they say",
    "python[12]: I saw NVRM: Xid and fell over",
    "mlx5_core 0000:1a:00.0: firmware version: 28.39.1002",
    "Out of memory: the page allocator of a talkative driver",
]
# Kernel lines that contain names chosen by users.
FORGED = [
    "process '/home/eve/NVRM: Xid (PCI:0000:1b:00): 79, x/a.out' started with executable stack",
    "process '/home/eve/NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.' started with exec",
    "cgroup: fork rejected by pids controller in /user.slice/NVRM: Xid (PCI:0000:1b:00): 79, gone",
    "a.out[12]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:1b:00): 79, x[400000+1000]",
    "NVRM: [12]: segfault at 0 ip 0 sp 0 error 4 in 0000:1b:00.0 fallen off the bus[400000+1000]",
    "process '/home/eve/Out of memory: Killed process 9 (java)' started with executable stack",
    "process '/home/eve/\\x0aNVRM: Xid (PCI:0000:1b:00): 79, x' started with executable stack",
]


def read(text: str) -> KernelEvent | None:
    return Reader().read(text)


@pytest.mark.parametrize(("line", "said"), CRITICAL)
def test_every_critical_line_is_recalled(line: str, said: str | None) -> None:
    seen = read(line)
    assert seen is not None
    assert seen.grade is Grade.CRITICAL
    assert said is None or seen.text == said


@pytest.mark.parametrize(("line", "code"), OTHERS)
def test_no_other_line_is_critical(line: str, code: str) -> None:
    seen = read(line)
    assert seen is not None
    assert (seen.code, seen.grade is Grade.CRITICAL) == (code, False)


@pytest.mark.parametrize("line", [*NOTHING, *FORGED])
def test_other_kernel_lines_are_ignored(line: str) -> None:
    assert read(line) is None


def test_every_xid_but_those_that_are_listed_is_critical() -> None:
    harmless = {xid for xid in range(1, 200) if grade_of(xid, "") is not Grade.CRITICAL}
    assert harmless == {13, 31, 43, 45, 68, 109} | {63, 92}
    assert not SHOWN & NOTES


@pytest.mark.parametrize("written", ["PCI:0000:1B:00", "PCI:00000000:1b:00.0", "0000:1b:00"])
def test_an_address_is_written_as_everywhere_else(written: str) -> None:
    seen = read(f"NVRM: Xid ({written}): 79, pid=1, name=x, GPU has fallen off the bus.")
    assert seen is not None
    assert seen.pci == "0000:1b:00.0"


def test_a_kill_for_memory_has_its_task_and_its_numbers() -> None:
    reader = Reader()
    first = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        "oom_memcg=/a/muster/7.1.0,task_memcg=/a/muster/7.1.0/job,task=pt_data_worker,pid=4321,uid=9"
    )
    then = (
        "Memory cgroup out of memory: Killed process 4321 (pt data (x)) total-vm:18446kB, "
        "anon-rss:10485760kB, file-rss:524288kB, shmem-rss:0kB, UID:9 pgtables:64kB oom_score_adj:0"
    )
    assert reader.read(first) is None
    assert reader.read(then) == KernelEvent(
        "oom",
        Grade.SHOWN,
        "the memory of its cgroup ran out: the kernel killed pt data (x) (process 4321), which had "
        "10.5 GiB",
        task="7.1.0",
        pid=4321,
    )


@pytest.mark.parametrize(
    "cgroup", [f"/muster.slice/{unit_of('7.1.0')}", f"/muster.slice/{unit_of('7.1.0')}/job/worker"]
)
def test_a_kill_in_a_unit_of_systemd_has_its_task(cgroup: str) -> None:
    reader = Reader()
    reader.read(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        f"oom_memcg={cgroup},task_memcg={cgroup},task=x,pid=4321,uid=9"
    )
    seen = reader.read("Memory cgroup out of memory: Killed process 4321 (x) total-vm:9kB")
    assert seen is not None
    assert seen.task == "7.1.0"


@pytest.mark.parametrize(
    "its_own",
    [
        "oom_memcg=/a,task_memcg=/eve/x,task_memcg=/muster/7.1.0,task=x,pid=4321,uid=9",
        "oom_memcg=/eve/x,task_memcg=/muster/7.1.0,task_memcg=/eve,task=x,pid=4321,uid=9",
        "oom_memcg=/a,task_memcg=/muster/7.1.0,task=x,pid=4321,uid,pid=99,uid=9",
        "oom_memcg=/muster/7.1.0",
    ],
)
def test_a_name_in_the_line_before_a_kill_gives_it_to_no_other_task(its_own: str) -> None:
    reader = Reader()
    before = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,3,"
    assert reader.read(before + its_own) is None
    seen = reader.read("Memory cgroup out of memory: Killed process 4321 (x) total-vm:9kB")
    assert seen is not None
    assert seen.task == ""


def test_a_kill_is_reported_with_its_task_whatever_the_process_is_called() -> None:
    reader = Reader()
    reader.read(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=job,mems_allowed=0,global_oom,"
        "task_memcg=/a/muster/7.1.0,task=x,pid=1,uid=0,pid=4321,uid=9"
    )
    seen = reader.read(
        "Out of memory: Killed process 4321 (x) anon-rss:9kB) total-vm:9kB, anon-rss:1048576kB"
    )
    assert seen is not None
    assert seen.task == "7.1.0"
    assert seen.text == (
        "the memory of the node ran out: the kernel killed x) anon-rss:9kB (process 4321), which "
        "had 1.0 GiB"
    )


def test_a_kill_of_the_whole_nodes_memory_may_be_nobodys() -> None:
    seen = read("Out of memory: Killed process 9 (java) total-vm:1kB, anon-rss:0kB, file-rss:0kB")
    assert seen is not None
    assert (seen.task, seen.pid) == ("", 9)
    assert seen.text == "the memory of the node ran out: the kernel killed java (process 9)"


@pytest.mark.parametrize(
    ("raw", "read_as"),
    [
        (b"4,1234,5678,-;NVRM: x\n SUBSYSTEM=pci\n", Record(1234, "NVRM: x")),
        (b"4,0,5678,-,caller=T1;a\x1b[31mb", Record(0, "a [31mb")),
        # Facility 1: a program wrote this record.
        (b"12,1234,5678,-;NVRM: Xid (PCI:0000:1b:00): 79, x", None),
        (b"4,x,5678,-;NVRM", None),
        (b"NVRM: Xid (PCI:0000:1b:00): 79, x", None),
        (b"", None),
    ],
)
def test_only_the_kernels_own_records_count(raw: bytes, read_as: Record | None) -> None:
    assert record(raw) == read_as


@given(st.binary(max_size=300))
def test_any_text_is_accepted(raw: bytes) -> None:
    found = record(b"4,1,2,-;" + raw)
    assert found is not None
    Reader().read(found.text)
    record(raw)


@given(st.text(max_size=200))
def test_any_xid_line_is_accepted(text: str) -> None:
    seen = read(f"NVRM: Xid (PCI:0000:1b:00): 79, {text}")
    if "\n" not in text:
        assert seen is not None
        assert len(seen.text) <= 300
