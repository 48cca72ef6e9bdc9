"""What is found when the names of a gang are looked up, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.hosts.proof import Findings, Resolver, prove

TABLE = (("node-a", "10.0.0.1"), ("gpu-a", "10.0.0.1"), ("node-b", "10.0.0.2"))
OTHERS = {"10.0.0.2": ("192.168.0.2",)}
OWN = "10.0.0.1"


@dataclass
class Book(Resolver):
    """A resolver that knows what it was told."""

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
    return prove(TABLE, OTHERS, OWN, book, pause=lambda _: None)


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

    assert prove(TABLE, OTHERS, OWN, book, pause=pause) == Findings()
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

    assert prove(TABLE, OTHERS, OWN, Slow(), pause=pause, clock=lambda: now).problems
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
    assert prove(table, {}, "", book) == Findings()
    assert reads == 2
