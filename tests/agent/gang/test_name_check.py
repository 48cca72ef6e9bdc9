"""Lookup of a gang's names: the findings and their consequences."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from agent.gang import name_check
from agent.gang.name_check import Findings, Resolver, check_before_write, check_names

TABLE = (("node-a", "10.0.0.1"), ("gpu-a", "10.0.0.1"), ("node-b", "10.0.0.2"))
OTHERS = {"10.0.0.2": ("192.168.0.2",)}
OWN = "10.0.0.1"


@dataclass
class Book(Resolver):
    """A resolver with scripted answers."""

    names: dict[str, list[str]] = field(
        default_factory=lambda: {name: [address] for name, address in TABLE}
    )
    back: dict[str, str] = field(
        default_factory=lambda: {"10.0.0.1": "node-a", "10.0.0.2": "NODE-B"}
    )
    ours: tuple[str, ...] = ("10.0.0.1", "127.0.1.1", "192.168.0.1")

    def addresses(self, name: str) -> list[str]:
        return self.names.get(name, [])

    def name(self, address: str) -> str:
        return self.back.get(address, "")

    def is_ours(self, address: str) -> bool:
        return address in self.ours


def look(book: Book) -> Findings:
    """Return the final findings; each reading of the clock advances it by a second."""
    return check_names(TABLE, OTHERS, OWN, book, pause=lambda _: None, clock=count().__next__)


def test_names_that_lead_there_and_back_are_proved() -> None:
    assert look(Book()) == Findings()


def test_a_name_that_is_not_known_is_a_problem() -> None:
    book = Book()
    del book.names["node-b"]
    assert look(book).problems == ("the name node-b of 10.0.0.2 is not known here",)


def test_a_name_that_leads_elsewhere_is_a_problem_that_says_where() -> None:
    book = Book()
    book.names["node-b"] = ["10.9.9.9", "10.0.0.2"]
    (problem,) = look(book).problems
    assert (
        problem == "the name node-b leads to 10.9.9.9, 10.0.0.2 here, and its node is at 10.0.0.2"
    )


def test_a_second_address_behind_the_right_one_is_worth_knowing() -> None:
    book = Book()
    book.names["node-b"] = ["10.0.0.2", "10.9.9.9"]
    assert look(book) == Findings((), ("the name node-b leads to 10.9.9.9 as well as 10.0.0.2",))


def test_another_address_of_the_same_node_is_no_problem() -> None:
    book = Book()
    book.names["node-b"] = ["192.168.0.2", "10.0.0.2"]
    assert look(book) == Findings()
    book.names["node-b"] = ["192.168.0.2"]
    assert not look(book).problems
    assert "its node has both" in look(book).warnings[0]


def test_the_own_name_on_a_loopback_address_is_a_warning_only() -> None:
    book = Book()
    book.names["node-a"] = ["127.0.1.1"]
    findings = look(book)
    assert not findings.problems
    assert "127.0.1.1" in findings.warnings[0]
    book.names["node-b"] = ["127.0.1.1"]
    assert look(book).problems


def test_the_own_name_on_another_machine_is_a_problem() -> None:
    book = Book()
    book.names["gpu-a"] = ["10.9.9.9"]
    assert "gpu-a" in look(book).problems[0]


def test_an_address_without_a_name_or_with_one_that_leads_elsewhere_is_a_problem() -> None:
    book = Book()
    book.back["10.0.0.2"] = ""
    assert look(book).problems == ("the address 10.0.0.2 of node-b has no name here",)
    book.back["10.0.0.2"] = "printer"
    assert "is called printer here" in look(book).problems[0]
    book.names["printer"] = ["10.0.0.2"]
    assert look(book) == Findings()


def test_a_cache_that_has_not_seen_the_file_yet_is_given_time() -> None:
    book = Book()
    del book.names["node-b"]
    paused = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            book.names["node-b"] = ["10.0.0.2"]

    assert check_names(TABLE, OTHERS, OWN, book, pause=pause) == Findings()
    assert len(paused) == 3


def test_the_machines_own_resolver_knows_this_machine() -> None:
    resolver = Resolver()
    assert "127.0.0.1" in resolver.addresses("localhost")
    assert resolver.name("127.0.0.1")
    assert resolver.is_ours("127.0.0.1")
    assert not resolver.is_ours("192.0.2.1")
    assert resolver.addresses("no such name\n") == []


def test_the_time_that_looking_takes_counts() -> None:
    book = Book()
    del book.names["node-b"]
    now, paused = 0.0, 0

    class Slow(Book):
        def addresses(self, name: str) -> list[str]:
            nonlocal now
            now += 1.0
            return book.addresses(name)

    def pause(_: float) -> None:
        nonlocal paused
        paused += 1

    assert check_names(TABLE, OTHERS, OWN, Slow(), pause=pause, clock=lambda: now).problems
    assert paused == 0


def test_a_table_is_not_gone_through_for_each_of_its_names() -> None:
    reads = 0

    class Counted(tuple[tuple[str, str], ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[tuple[str, str]]:
            nonlocal reads
            reads += 1
            return super().__iter__()

    table = Counted((f"n{number}", f"10.0.{number}.1") for number in range(200))
    book = Book({name: [address] for name, address in table}, {a: n for n, a in table})
    reads = 0
    assert check_names(table, {}, "", book) == Findings()
    assert reads == 2


def before(book: Book) -> Findings:
    return check_before_write(
        TABLE, OTHERS, OWN, book, pause=lambda _: None, clock=count().__next__
    )


def test_names_that_nobody_knows_are_free() -> None:
    assert before(Book(names={})) == Findings()
    assert before(Book()) == Findings()


def test_a_name_of_another_machine_is_a_problem_that_says_where_and_what_to_do() -> None:
    book = Book()
    book.names["node-b"] = ["10.9.9.9"]
    (problem,) = before(book).problems
    for word in ("node-b", "leads to 10.9.9.9", "at 10.0.0.2", "`node` in its agent.yaml", "DNS"):
        assert word in problem
    book.names["node-b"] = ["127.0.0.1"]
    assert before(book).problems


def test_a_name_that_leads_to_any_address_of_its_node_is_the_nodes() -> None:
    for found in (["192.168.0.2"], ["10.9.9.9", "192.168.0.2"], ["fe80::2%eth0"]):
        book = Book()
        book.names["node-b"] = found
        assert before(book) == Findings()


def test_the_own_name_may_lead_to_any_address_of_this_machine() -> None:
    book = Book()
    book.names["node-a"] = ["127.0.1.1", "192.168.0.1"]
    assert before(book) == Findings()
    book.names["node-a"] = ["10.9.9.9"]
    assert before(book).problems


def test_the_answer_of_a_wildcard_is_none() -> None:
    class Wild(Book):
        def addresses(self, name: str) -> list[str]:
            return super().addresses(name) or ["10.8.8.8"]

    assert before(Wild(names={})) == Findings()
    assert before(Wild(names={"node-b": ["10.9.9.9"]})).problems


def test_a_name_that_led_elsewhere_a_moment_ago_is_asked_for_again() -> None:
    book = Book()
    book.names["node-b"] = ["10.9.9.9"]

    def pause(_: float) -> None:
        book.names["node-b"] = []

    assert check_before_write(TABLE, OTHERS, OWN, book, pause=pause) == Findings()


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_check, "ASK_S", 0.05)
    over = threading.Event()

    class Silent(Book):
        def addresses(self, name: str) -> list[str]:
            if name == "node-b":
                over.wait(60.0)
            return super().addresses(name)

    found = before(Silent())
    over.set()
    assert not found.problems
    (warning,) = found.warnings
    assert "whether 1 name of the gang's nodes" in warning
