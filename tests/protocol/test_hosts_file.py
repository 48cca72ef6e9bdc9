"""Blocks in a hosts file: ours are found again exactly, and nothing else is ever touched."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol import hosts_file
from muster.protocol.hosts_file import BadHost, Conflict

TABLE = (("node-a", "10.0.0.1"), ("gpu_a.example.org", "10.0.0.1"), ("node-b", "fd00::2"))
BLOCK = b"""\
# BEGIN muster 42.1 (by muster-agent: the nodes of job 42, attempt 1, until it ends)
10.0.0.1\tnode-a gpu_a.example.org\t# muster 42.1
fd00::2\tnode-b\t# muster 42.1
# END muster 42.1
"""
USUAL = b"127.0.0.1 localhost\n\n# mine\n10.0.0.7\tserver server.example.org # keep\n"

leases = st.sampled_from(["1.1", "1.2", "42.1", "999.3"])
names = st.sampled_from(["a", "b", "node-c", "gpu-4.example.org"])
addresses = st.sampled_from(["10.0.0.1", "10.0.0.2", "192.168.7.9", "fd00::2"])
tables = st.dictionaries(names, addresses, max_size=4).map(lambda table: tuple(table.items()))
pieces = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"\0",
            b"\xff\xfe",
            b"127.0.0.1 localhost\n",
            b"10.0.0.9 a\n",
            b"# BEGIN muster 42.1",
            b"# BEGIN muster 42.1\n",
            b"# END muster\n",
            b"10.0.0.2\tnode-b\t# muster 42.",
            b"10.0.0.2\tnode-b # muster 42.1\n",
        ]
    ),
)
# A line of ours that is cut off may be made whole by the piece behind it: then it is ours.
whole = re.compile(rb"\t# muster \d+\.\d")
foreign = (
    st.lists(pieces, max_size=12).map(b"".join).filter(lambda text: whole.search(text) is None)
)
ours = st.sampled_from([*BLOCK.splitlines(keepends=True), BLOCK, BLOCK.replace(b"\n", b"\r\n")])
files = st.lists(st.one_of(pieces, ours), max_size=14).map(b"".join)


def lines(text: bytes) -> Counter[bytes]:
    return Counter(line.rstrip(b"\n") for line in text.split(b"\n") if line)


def test_a_block_says_whose_it_is_and_how_long_it_stays() -> None:
    assert hosts_file.with_block(USUAL, "42.1", TABLE) == USUAL + BLOCK


@given(foreign, leases, tables)
def test_foreign_lines_stay_byte_for_byte(text: bytes, lease: str, table: hosts_file.Table) -> None:
    assert hosts_file.parse(text).entries == {}
    written = hosts_file.with_block(text, lease, table)
    assert written.startswith(text)
    assert hosts_file.without_blocks(written, ()) == text


@given(files, st.lists(st.tuples(leases, tables), max_size=4))
def test_foreign_lines_stay_whatever_blocks_come_and_go(
    text: bytes, blocks: list[tuple[str, hosts_file.Table]]
) -> None:
    before = hosts_file.parse(text).foreign
    for lease, table in blocks:
        text = hosts_file.with_block(text, lease, table)
        assert hosts_file.parse(text).foreign == before
        assert hosts_file.with_block(text, lease, table) == text
        kept = hosts_file.parse(hosts_file.without_blocks(text, {lease}))
        assert (kept.foreign, set(kept.entries)) == (before, {lease})
    assert hosts_file.parse(hosts_file.without_blocks(text, ())).entries == {}
    assert lines(hosts_file.without_blocks(text, ())) == lines(before)


@given(files, st.integers(0, 400), st.binary(max_size=8))
def test_a_file_that_was_cut_or_edited_in_a_block_loses_no_line_of_others(
    text: bytes, at: int, inserted: bytes
) -> None:
    written = hosts_file.with_block(text, "42.1", TABLE)
    at = min(at, len(written))
    for damaged in (written[:at], written[:at] + b"\n" + inserted + b"\n" + written[at:]):
        left = lines(hosts_file.without_blocks(damaged, ()))
        for line, count in lines(damaged).items():
            if b"muster" not in line:
                assert left[line] == count


@pytest.mark.parametrize("alone", BLOCK.splitlines(keepends=True))
def test_a_line_of_ours_is_known_without_its_markers(alone: bytes) -> None:
    assert (
        hosts_file.without_blocks(USUAL + alone + b"10.1.1.1 new\n", ())
        == USUAL + b"10.1.1.1 new\n"
    )


def test_a_line_that_someone_put_into_a_block_is_theirs() -> None:
    begin, *rest = BLOCK.splitlines(keepends=True)
    edited = b"".join([USUAL, begin, b"10.0.0.3 new-one\n", *rest])
    assert hosts_file.without_blocks(edited, ()) == USUAL + b"10.0.0.3 new-one\n"


def test_a_file_without_a_last_line_end_gets_none() -> None:
    text = b"127.0.0.1 localhost"
    both = hosts_file.with_block(hosts_file.with_block(text, "1.1", TABLE), "2.1", TABLE)
    assert hosts_file.without_blocks(hosts_file.without_blocks(both, {"2.1"}), ()) == text
    assert hosts_file.without_blocks(both + b"10.1.1.1 new\n", ()) == text + b"\n10.1.1.1 new\n"


@given(foreign, st.lists(pieces, max_size=3), st.integers(0, 20), tables)
def test_edits_of_another_writer_are_in_our_text_too(
    base: bytes, more: list[bytes], drop: int, table: hosts_file.Table
) -> None:
    theirs = b"".join(base.splitlines(keepends=True)[drop:]) + b"".join(more)
    mine = hosts_file.with_block(base, "1.1", table)
    merged = hosts_file.merge(base, theirs, mine)
    assert hosts_file.parse(merged).entries == hosts_file.parse(mine).entries
    assert hosts_file.parse(merged).foreign == hosts_file.parse(theirs).foreign
    assert hosts_file.merge(mine, hosts_file.with_block(theirs, "1.1", table), mine) == merged


def test_two_other_writers_lose_nothing() -> None:
    base, mine = USUAL, hosts_file.with_block(USUAL + b"10.1.1.1 first\n", "1.1", TABLE)
    theirs = USUAL.replace(b"# mine\n", b"") + b"10.1.1.2 second\n"
    merged = hosts_file.merge(base, theirs, mine)
    assert hosts_file.parse(merged).foreign == (
        USUAL.replace(b"# mine\n", b"") + b"10.1.1.1 first\n10.1.1.2 second\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("", "a b", "a\nb", "a\n", "a#", "#", "a\tb", "a\x00", "ä", "-a", "a-", "a..b", "x" * 254),
        *("localhost", "LocalHost", "localhost.localdomain", "ip6-loopback", "a.localhost"),
        *("10.0.0.1", "7", "a\u2028b", "a\r"),
    ],
)
def test_such_a_name_gets_into_no_table(name: str) -> None:
    with pytest.raises(BadHost):
        hosts_file.check_name(name)
    assert hosts_file.table_problems([(name, "10.0.0.1")])
    with pytest.raises(BadHost):
        hosts_file.with_block(b"", "1.1", [(name, "10.0.0.1")])


@pytest.mark.parametrize(
    "address",
    [
        *("", "10.0.0.1\n", "10.0.0.1 evil", "10.0.0.1#", "0.0.0.0", "::", "224.0.0.1", "fe80::1"),
        *("fe80::1%eth0", "node-a", "010.0.0.1", "10.0.0", "fd00::1%x\ny"),
    ],
)
def test_such_an_address_gets_into_no_table(address: str) -> None:
    with pytest.raises(BadHost):
        hosts_file.check_address(address)
    with pytest.raises(BadHost):
        hosts_file.with_block(b"", "1.1", [("a", address)])


@given(st.text(), st.text())
def test_no_text_becomes_more_than_a_line(name: str, address: str) -> None:
    try:
        written = hosts_file.with_block(USUAL, "1.1", [(name, address)])
    except BadHost:
        return
    assert written.count(b"\n") == USUAL.count(b"\n") + 3
    assert hosts_file.without_blocks(written, ()) == USUAL


def test_all_that_is_wrong_with_a_table_is_said_at_once() -> None:
    table = [("a b", "10.0.0.1"), ("ok", "nowhere"), ("c", "10.0.0.3"), ("C", "10.0.0.4")]
    assert len(hosts_file.table_problems(table)) == 3


def test_a_foreign_line_of_another_address_is_a_conflict_with_its_number() -> None:
    text = USUAL + b"10.9.9.9\tother NODE-B # why\n"
    assert hosts_file.conflicts(text, "42.1", TABLE, {}) == [
        Conflict("node-b", "10.9.9.9", "fd00::2", line=5)
    ]


def test_a_foreign_line_that_agrees_is_none_nor_is_a_second_address_beside_it() -> None:
    text = b"10.0.0.1 node-a\n10.7.7.7 node-a\n0:fd00::2 node-b\nfd00:0::2 node-b\n"
    assert hosts_file.conflicts(text, "42.1", TABLE, {}) == []


def test_another_attempt_that_has_the_name_elsewhere_is_named() -> None:
    text = hosts_file.with_block(USUAL, "7.2", [("node-b", "10.5.5.5"), ("node-a", "10.0.0.1")])
    assert hosts_file.conflicts(text, "42.1", TABLE, {}) == [
        Conflict("node-b", "10.5.5.5", "fd00::2", lease="7.2")
    ]
    assert hosts_file.conflicts(text, "7.2", TABLE, {}) == []


def test_another_address_of_the_right_node_is_no_conflict_and_one_of_another_node_is() -> None:
    name, address = TABLE[0]
    text = f"10.88.0.1 {name}\n".encode()
    assert hosts_file.conflicts(text, "42.1", TABLE, {address: ("10.88.0.1",)}) == []
    assert hosts_file.conflicts(text, "42.1", TABLE, {TABLE[-1][1]: ("10.88.0.1",)})


def test_a_copy_for_one_job_drops_claims_to_its_names_and_nothing_else() -> None:
    text = USUAL + b"127.0.1.1\tnode-a.example.org NODE-A # debian\n127.0.1.1 node-b\n"
    left = hosts_file.without_names(text, ["node-a", "node-b"])
    assert left == USUAL + b"127.0.1.1\tnode-a.example.org\n"
