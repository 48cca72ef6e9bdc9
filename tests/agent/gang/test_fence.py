"""The fence around a rendezvous: the rules as text, and what they let through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.core.record import TaskRecord
from agent.gang.fence import Fence, Fenced, FenceError, fenced_in, in_gang, leased, ruleset
from agent.shims.apart import NFT
from agent.taskdirs.taskdirs import TaskDirs
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, PrepareTask
from muster.protocol.link.terms import Terms
from tests.agent.gang.machines import IPV6, PORT, Machines, run

TASK, OTHER = TaskId("7.1.0"), TaskId("8.1.0")
USER = 47_111
Make = Callable[..., Fence]
PLAN = ArrangeTask(
    TASK,
    ("true",),
    {"MASTER_PORT": "20001"},
    (("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n2-too", "10.0.0.2")),
    "",
    others={"10.0.0.1": ("10.1.0.1", "fd00::1"), "10.0.0.2": ("10.1.0.2", "fd00::2")},
)


def test_without_tasks_the_table_is_removed() -> None:
    assert ruleset("t", {}) == "table inet t\ndelete table inet t\n"


def test_the_gang_of_a_plan() -> None:
    fenced = in_gang(Fenced(USER, (20_001,)), PLAN)
    launcher = ("10.0.0.1", "10.1.0.1", "fd00::1")
    assert set(fenced.members) == {*launcher, "10.0.0.2", "10.1.0.2", "fd00::2"}
    assert fenced.rendezvous == (launcher, 20_001)
    alone = ArrangeTask(TASK, ("true",), {"MASTER_PORT": "20001"}, (), "")
    assert in_gang(Fenced(USER, (20_001,)), alone) == Fenced(USER, (20_001,))


def test_a_gang_without_a_port_comes_in_too() -> None:
    plan = ArrangeTask(TASK, ("true",), {}, PLAN.hosts, "")
    fenced = in_gang(Fenced(USER, (20_001,)), plan)
    assert fenced.members == ("10.0.0.1", "10.0.0.2")
    assert fenced.rendezvous is None


def admitting(number: int, *addresses: str) -> Terms:
    return Terms(number, admits=addresses)


def test_a_gang_that_grows_lets_in_the_nodes_of_its_newest_terms() -> None:
    leased = Fenced(USER, (20_001,), grows=True)
    alone = ArrangeTask(TASK, (), {}, (), "", terms=admitting(1, "10.0.0.1"))
    known = in_gang(leased, alone)
    assert known.members == ("10.0.0.1",)
    grown = in_gang(known, alone, admitting(2, "10.0.0.1", "10.0.0.2", "fd00::2%eth0"))
    assert grown.members == ("10.0.0.1", "10.0.0.2", "fd00::2")
    text = ruleset("t", {TASK: grown})
    assert "ip saddr != { 10.0.0.1, 10.0.0.2 } drop" in text
    assert "ip6 saddr != { fd00::2 } drop" in text
    assert in_gang(grown, alone, admitting(3, "10.0.0.1")) == known


def test_a_gang_that_grows_is_open_if_its_coordinator_does_not_name_its_nodes() -> None:
    fenced = in_gang(Fenced(USER, (20_001,), grows=True), PLAN)
    text = ruleset("t", {TASK: fenced})
    assert "iifname" not in text
    assert "oifname" in text


def test_rules_name_the_gang_the_user_and_the_task() -> None:
    text = ruleset("t", {TASK: in_gang(Fenced(USER, (20_001, 20_002)), PLAN)})
    new = "tcp flags & (syn | ack) == syn"
    answer = "tcp flags & (syn | ack) == (syn | ack)"
    into = f'iifname != "lo" tcp dport {{ 20001, 20002 }} {new}'
    own, others = f"{new} meta skuid {{ 0, {USER} }} accept", f"{new} reject with tcp reset"
    for rule in (
        f"{into} ip saddr != {{ 10.0.0.1, 10.0.0.2, 10.1.0.1, 10.1.0.2 }} drop",
        f"{into} ip6 saddr != {{ fd00::1, fd00::2 }} drop",
        f"{into} ip daddr 169.254.0.0/16 drop",
        f"{into} ip6 daddr fe80::/10 drop",
        f'oifname "lo" tcp dport {{ 20001, 20002 }} {own}',
        f'oifname "lo" tcp dport {{ 20001, 20002 }} {others}',
        f"ip daddr {{ 10.0.0.1, 10.1.0.1 }} tcp dport 20001 {own}",
        f"ip daddr {{ 10.0.0.1, 10.1.0.1 }} tcp dport 20001 {others}",
        f"ip6 daddr {{ fd00::1 }} tcp dport 20001 {others}",
        f"tcp sport {{ 20001, 20002 }} {own}",
        f"tcp sport {{ 20001, 20002 }} {others}",
        f"tcp sport {{ 20001, 20002 }} {answer} meta skuid {{ 0, {USER} }} accept",
        f"tcp sport {{ 20001, 20002 }} {answer} drop",
    ):
        assert f'{rule} comment "task {TASK}"' in text.splitlines()


def test_a_node_that_joins_holds_its_other_users_back_before_it_is_let_in() -> None:
    prepare = PrepareTask(TASK, "torchrun", None, None, (), {}, 60.0, grows=True)
    assert leased(USER, (20_001,), prepare) == Fenced(USER, (20_001,), grows=True)
    joins = msgspec.structs.replace(prepare, meets=(("10.0.0.1", "fd00::1%eth0"), 20_001))
    text = ruleset("t", {TASK: leased(USER, (), joins)})
    new = "tcp flags & (syn | ack) == syn"
    for rule in (
        f"ip daddr {{ 10.0.0.1 }} tcp dport 20001 {new} reject with tcp reset",
        f"ip6 daddr {{ fd00::1 }} tcp dport 20001 {new} reject with tcp reset",
        f"ip6 daddr {{ fd00::1 }} tcp dport 20001 {new} meta skuid {{ 0, {USER} }} accept",
    ):
        assert f'{rule} comment "task {TASK}"' in text.splitlines()
    assert "20002" not in text


def test_an_agent_that_starts_again_holds_back_the_users_of_a_node_that_joins(
    tmp_path: Path,
) -> None:
    folders = TaskDirs(tmp_path)
    prepare = PrepareTask(TASK, "torchrun", None, None, (), {}, 60.0, grows=True)
    joins = msgspec.structs.replace(prepare, meets=(("10.0.0.1",), 20_001))
    folders.create(joins, (20_002,))
    assert fenced_in(folders) == {TASK: leased(os.getuid(), (20_002,), joins)}


# --- with a kernel ----------------------------------------------------------------------

needs_nft = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which(NFT) is None or shutil.which("ip") is None,
        reason="only root has tables, and nft writes them",
    ),
]


@pytest.fixture
def network() -> Iterator[Machines]:
    """The machines, without a server."""
    found = Machines(f"mf{secrets.token_hex(3)}-")
    try:
        found.build()
    except (OSError, subprocess.CalledProcessError):
        found.remove()
        pytest.skip("no network namespaces here")
    try:
        yield found
    finally:
        found.remove()


@pytest.fixture
def machines(network: Machines) -> Iterator[Machines]:
    with network.serving(uid=0):
        yield network


class TestWithAKernel:
    pytestmark = needs_nft

    def test_only_the_gang_and_its_user_come_in(self, machines: Machines) -> None:
        launcher, mate = "10.0.0.1", "10.0.0.2"
        plan = ArrangeTask(TASK, (), {"MASTER_PORT": "20001"}, (("n1", launcher), ("n2", mate)), "")
        for number in (1, 2, 3):
            assert machines.connects(number, launcher, USER + 1), "the control"
        machines.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
        machines.apply(2, ruleset("m", {TASK: in_gang(Fenced(USER, (20_002,)), plan)}))
        for number, address in ((1, launcher), (1, "127.0.0.1"), (2, launcher)):
            for uid in (USER, 0):
                assert machines.connects(number, address, uid)
            assert not machines.connects(number, address, USER + 1)
        # Dropped without an answer, so it waits for nothing.
        assert not machines.connects(3, launcher, USER, patience_s=1.5)
        for number in (1, 2):
            machines.apply(number, ruleset("m", {}))
            assert machines.tables(number) == ""
        assert machines.connects(3, launcher, USER + 1)

    def test_a_listener_of_another_user_gets_no_connection(self, network: Machines) -> None:
        plan = ArrangeTask(
            TASK, (), {"MASTER_PORT": "20001"}, (("n1", "10.0.0.1"), ("n2", "10.0.0.2")), ""
        )
        ways = ((1, "10.0.0.1"), (1, "127.0.0.1"), (2, "10.0.0.1"))
        with network.serving(USER + 1):
            for number, address in ways:
                assert network.connects(number, address, USER), "the control"
            network.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
            for number, address in ways:
                for uid in (USER, 0):
                    assert not network.connects(number, address, uid, patience_s=1.5)
        with network.serving(USER):
            for number, address in ways:
                assert network.connects(number, address, USER)

    def test_no_listener_of_another_user_answers_by_syn_cookies(self, network: Machines) -> None:
        """With a full queue the kernel answers without a socket, so without a user."""
        plan = ArrangeTask(
            TASK, (), {"MASTER_PORT": "20001"}, (("n1", "10.0.0.1"), ("n2", "10.0.0.2")), ""
        )
        with network.serving(USER + 1, backlog=0):
            assert network.connects(2, "10.0.0.1", USER), "the control"
            network.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
            for uid in (USER, 0, USER):
                for number, address in ((2, "10.0.0.1"), (1, "10.0.0.1"), (1, "127.0.0.1")):
                    assert not network.connects(number, address, uid, patience_s=1.5)
        with network.serving(USER, backlog=0):
            assert network.connects(2, "10.0.0.1", USER)

    def test_who_connects_from_a_leased_port_meets_no_node(self, network: Machines) -> None:
        """If two processes connect to each other at once, they get a connection, and no one
        listens."""
        plan = ArrangeTask(
            TASK, (), {"MASTER_PORT": "20001"}, (("n1", "10.0.0.1"), ("n2", "10.0.0.2")), ""
        )
        # The first packet of the node is lost.
        lost = "ip saddr 10.0.0.2 tcp flags & (syn | ack) == syn drop"
        hook = "type filter hook prerouting priority -300;"
        network.apply(1, f"table ip lost {{\nchain in {{\n{hook}\n{lost}\n}}\n}}\n")
        here, there = ("10.0.0.1", PORT), ("10.0.0.2", 30_001)

        def meets(uid: int) -> bool:
            with (
                network.connecting(2, USER, there, here) as node,
                network.connecting(1, uid, here, there) as other,
            ):
                met = other.communicate()[0] == "in\n"
                return met and node.communicate()[0] == "in\n"

        assert meets(USER + 1), "the control"
        network.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (PORT,)), plan)}))
        assert not meets(USER + 1)
        assert meets(USER)

    def test_who_connects_from_a_network_of_containers_meets_no_node(
        self, machines: Machines
    ) -> None:
        """Its packets come through the launcher's machine, and have no user."""
        machines.build_inner()
        plan = ArrangeTask(
            TASK, (), {"MASTER_PORT": "20001"}, (("n2", "10.0.0.2"), ("n1", "10.0.0.1")), ""
        )
        # Packets of the node to the machine itself are lost.
        lost = "ip saddr 10.0.0.1 tcp flags & (syn | ack) == syn drop"
        hook = "type filter hook input priority -300;"
        machines.apply(2, f"table ip lost {{\nchain in {{\n{hook}\n{lost}\n}}\n}}\n")

        def meets() -> bool:
            with (
                machines.connecting(1, USER, ("10.0.0.1", 30_001), ("10.0.0.2", PORT)) as node,
                machines.connecting(0, USER + 1, ("10.9.0.2", PORT), ("10.0.0.1", 30_001)) as other,
            ):
                met = other.communicate()[0] == "in\n"
                return met and node.communicate()[0] == "in\n"

        assert meets(), "the control"
        machines.apply(2, ruleset("m", {TASK: in_gang(Fenced(USER, (PORT,)), plan)}))
        assert not meets()

    @pytest.mark.skipif(not IPV6, reason="no IPv6")
    def test_a_link_local_address_of_the_launcher_is_no_way_in(self, machines: Machines) -> None:
        """No agent reports it, so the nodes of the gang do not hold their other users back from it,
        and a process chooses the address from which it connects."""
        others: dict[str, tuple[str, ...]] = {"10.0.0.1": ("fd00::1",), "10.0.0.2": ("fd00::2",)}
        plan = ArrangeTask(
            *(TASK, (), {"MASTER_PORT": "20001"}, (("n1", "10.0.0.1"), ("n2", "10.0.0.2")), ""),
            others=others,
        )
        for own in ("fe80::2%eth0", "fd00::2"):
            assert machines.connects(2, "fe80::1%eth0", USER + 1, own=own), "the control"
        machines.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
        machines.apply(2, ruleset("m", {TASK: in_gang(Fenced(USER, (20_002,)), plan)}))
        for own in ("fe80::2%eth0", "fd00::2"):
            assert not machines.connects(2, "fe80::1%eth0", USER + 1, 1.5, own=own)
        assert machines.connects(2, "fd00::1", USER)
        assert not machines.connects(2, "fd00::1", USER + 1)

    def test_nobody_in_a_network_of_containers_comes_in(self, machines: Machines) -> None:
        """Its packets leave a node of the gang with that node's address, and without a user."""
        machines.build_inner()
        plan = ArrangeTask(
            TASK, (), {"MASTER_PORT": "20001"}, (("n1", "10.0.0.1"), ("n2", "10.0.0.2")), ""
        )
        machines.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
        for uid in (USER, USER + 1, 0):
            assert machines.connects(0, "10.0.0.1", uid), "the control"
        machines.apply(2, ruleset("m", {TASK: in_gang(Fenced(USER, (20_002,)), plan)}))
        for uid in (USER, USER + 1, 0):
            assert not machines.connects(0, "10.0.0.1", uid)
        assert machines.connects(2, "10.0.0.1", USER)

    def test_until_the_gang_is_known_only_its_user_on_its_node_comes_in(
        self, machines: Machines
    ) -> None:
        machines.apply(1, ruleset("m", {TASK: Fenced(USER, (20_001,))}))
        assert machines.connects(1, "10.0.0.1", USER)
        assert machines.connects(1, "127.0.0.1", USER)
        assert not machines.connects(1, "127.0.0.1", USER + 1)
        # Refused as by a closed port: the agent of a node that is early tries again at once.
        assert not machines.connects(2, "10.0.0.1", USER)

    def test_a_node_that_has_joined_comes_in(self, machines: Machines) -> None:
        leased = Fenced(USER, (20_001,), grows=True)
        plan = ArrangeTask(TASK, (), {}, (), "", terms=admitting(1, "10.0.0.1"))
        for terms, comes in (
            (None, False),
            (admitting(2, "10.0.0.1", "10.0.0.2"), True),
            (admitting(3, "10.0.0.1"), False),
        ):
            machines.apply(1, ruleset("m", {TASK: in_gang(leased, plan, terms)}))
            assert machines.connects(1, "10.0.0.1", USER)
            assert not machines.connects(1, "10.0.0.1", USER + 1)
            assert machines.connects(2, "10.0.0.1", USER, 20.0 if comes else 2.0) is comes
            assert not machines.connects(3, "10.0.0.1", USER, 2.0)

    def test_a_second_address_of_the_launcher_is_no_way_in(self, machines: Machines) -> None:
        for number in (1, 2):
            own = ("ip", "-n", machines.names[number - 1])
            run(*own, "address", "add", f"10.1.0.{number}/24", "dev", "eth0")
        assert machines.connects(2, "10.1.0.1", USER + 1), "the control"
        plan = ArrangeTask(
            *(TASK, (), {"MASTER_PORT": "20001"}, PLAN.hosts, ""), others=PLAN.others
        )
        machines.apply(1, ruleset("m", {TASK: in_gang(Fenced(USER, (20_001,)), plan)}))
        machines.apply(2, ruleset("m", {TASK: in_gang(Fenced(USER, (20_002,)), plan)}))
        for address in ("10.0.0.1", "10.1.0.1"):
            assert machines.connects(2, address, USER)
            assert not machines.connects(2, address, USER + 1)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which a replacement for nft writes its last input."""
    said = tmp_path / "said"
    script = tmp_path / NFT
    script.write_text(f"#!/bin/sh\n/bin/cat > {said}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return said


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a fence, which is closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(contextlib.closing(Fence(*args, **more)))


async def test_tasks_come_and_go_and_nothing_of_others_stays(program: Path, make: Make) -> None:
    fence = make("0123456789abcdef", on=True, must=True)
    await fence.begin({OTHER: Fenced(USER, (20_005,))})
    assert program.read_text().startswith("table inet muster_0123456789ab\ndelete table")
    assert "20005" in program.read_text()
    await fence.lease(TASK, Fenced(USER, (20_001,)))
    await fence.arrange(TASK, PLAN)
    assert "10.1.0.2" in program.read_text()
    assert "iifname" in program.read_text()
    await fence.drop(OTHER)
    assert "20005" not in program.read_text()
    await fence.drop(TASK)
    assert len(program.read_text().splitlines()) == 2


async def test_a_gang_that_grows_is_closed_but_for_the_nodes_of_a_record(
    program: Path, make: Make
) -> None:
    fence = make("0123456789abcdef", on=True, must=True)
    await fence.lease(TASK, Fenced(USER, (20_001,), grows=True))
    assert "meta nfproto ipv4 reject" in program.read_text()
    alone = ArrangeTask(TASK, (), {}, (), "", terms=admitting(1, "10.0.0.1"))
    await fence.follow(TASK, TaskRecord("boot", "here", alone, alone.terms))
    assert "ip saddr != { 10.0.0.1 } drop" in program.read_text()
    grown = admitting(2, "10.0.0.1", "10.0.0.2")
    await fence.follow(TASK, TaskRecord("boot", "here", alone, grown))
    assert "ip saddr != { 10.0.0.1, 10.0.0.2 } drop" in program.read_text()
    await fence.follow(OTHER, TaskRecord("boot", "here", alone, grown))
    assert OTHER not in program.read_text()


async def test_a_table_that_somebody_removed_is_restored(
    program: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    fence = make("0123456789abcdef", on=True, must=True)
    await fence.lease(TASK, Fenced(USER, (20_001,)))
    written = program.read_text()
    listed = program.with_name("listed")
    # Acts like nft: `list` prints the table, `-f` replaces it.
    program.with_name(NFT).write_text(
        f'#!/bin/sh\n[ "$1" = list ] && exec /bin/cat {listed}\n/bin/cat > {program}\n'
    )
    for there, restored in ((written, False), ("", True), (written.replace("comment", ""), True)):
        listed.write_text(there)
        program.unlink(missing_ok=True)
        await fence.look()
        assert program.exists() is restored
    assert program.read_text() == written
    await fence.drop(TASK)
    program.unlink()
    await fence.look()
    assert not program.exists()


async def test_a_table_that_could_not_be_written_is_written_later(
    program: Path, make: Make
) -> None:
    nft = program.with_name(NFT)
    works, fails = nft.read_text(), "#!/bin/sh\necho 'no buffer space' >&2; exit 1\n"
    fence = make("0123456789abcdef", on=True, must=False)
    await fence.lease(TASK, Fenced(USER, (20_001,)))
    nft.write_text(fails)
    await fence.arrange(TASK, PLAN)
    await fence.look()
    assert "10.1.0.2" not in program.read_text()
    nft.write_text(works)
    await fence.look()
    assert "10.1.0.2" in program.read_text()
    nft.write_text(fails)
    await fence.drop(TASK)
    nft.write_text(works)
    await fence.look()
    assert len(program.read_text().splitlines()) == 2


@pytest.mark.parametrize("alone", [True, False])
async def test_tables_of_agents_that_were_here_before_are_removed(
    program: Path, make: Make, *, alone: bool
) -> None:
    """An agent that has lost its folder has another id."""
    listed = program.with_name("listed")
    old, own = "table inet muster_fedcba987654", "table inet muster_0123456789ab"
    listed.write_text(f"table ip muster_a\n{old}\ntable inet muster_site\n{own}\n")
    program.with_name(NFT).write_text(
        f'#!/bin/sh\n[ "$1" = list ] && exec /bin/cat {listed}\n/bin/cat > {program}\n'
    )
    for on in (True, False):
        await make("0123456789abcdef", on=on, must=False, alone=alone).begin({})
        removed = [it for it in program.read_text().splitlines() if it.startswith("delete")]
        assert removed == [f"delete {it}" for it in ([old, own] if alone else [own])]


@pytest.mark.root
async def test_a_table_of_an_agent_that_lives_stays(program: Path, make: Make) -> None:
    """Two agents of one network namespace may have mount namespaces, and so locks, of their own."""
    listed = program.with_name("listed")
    # Only these are of this test.
    ids = [f"{secrets.token_hex(6)}abcd" for _ in range(3)]
    tables = [f"table inet muster_{it[:12]}" for it in ids]
    listed.write_text("\n".join([*tables, ""]))
    program.with_name(NFT).write_text(
        f'#!/bin/sh\n[ "$1" = list ] && exec /bin/cat {listed}\n/bin/cat > {program}\n'
    )
    lives = make(ids[0], on=True, must=False)
    starts = make(ids[1], on=True, must=False, alone=True)
    await lives.begin({})
    await starts.begin({})
    assert removed_by(program) == {tables[1], tables[2]}
    lives.close()
    await starts.begin({})
    assert removed_by(program) == set(tables)


def removed_by(program: Path) -> set[str]:
    lines = program.read_text().splitlines()
    return {it.removeprefix("delete ") for it in lines if it.startswith("delete")}


@pytest.mark.parametrize("must", [True, False])
async def test_a_task_starts_without_the_fence_only_if_the_site_does_not_demand_it(
    program: Path, make: Make, *, must: bool
) -> None:
    fence = make("0123456789abcdef", on=True, must=must)
    await fence.begin({})
    works = program.with_name(NFT).read_text()
    program.with_name(NFT).write_text("#!/bin/sh\necho 'no buffer space' >&2; exit 1\n")
    plan = TaskRecord("boot", "here", PLAN)
    with _refused(must):
        await fence.lease(TASK, Fenced(USER, (20_001,)))
    # `follow` does not raise, even if an earlier write failed.
    await fence.follow(TASK, plan)
    with _refused(must):
        await fence.arrange(TASK, PLAN)
    program.with_name(NFT).write_text(works)
    await fence.arrange(TASK, PLAN)
    assert "10.1.0.2" in program.read_text()
    program.with_name(NFT).unlink()
    await fence.drop(TASK)


def _refused(must: bool) -> contextlib.AbstractContextManager[object]:
    if not must:
        return contextlib.nullcontext()
    return pytest.raises(FenceError, match=r"no buffer space.*`fence` is true.*repair nftables")


async def test_switched_off_it_removes_what_was_there(program: Path, make: Make) -> None:
    fence = make("0123456789abcdef", on=False, must=False)
    await fence.begin({OTHER: Fenced(USER, (20_005,))})
    assert len(program.read_text().splitlines()) == 2
    program.unlink()
    await fence.lease(TASK, Fenced(USER, (20_001,)))
    await fence.arrange(TASK, PLAN)
    await asyncio.sleep(0)
    assert not program.exists()
