"""From the measurements of the nodes to findings."""

import pytest

from muster.check.parse_output import CheckOutput, NameLookups, NodeReport, Transfer
from muster.check.report import (
    PAIRS_MAX,
    CheckReport,
    Finding,
    FindingSeverity,
    between,
    differences,
    fabric,
    names_and_clocks,
    networks_found,
    worst_first,
)
from muster.http.fabric import NodeFabricView, PlanView

NET = "10.0.0.0/24"
UNKNOWN = (
    "note: c knows no names of the others, not even while a job runs: `hosts.mode` of the agent is "
    "off, or it is not root"
)
NAMES = ("a", "b", "c", "d")


def full(
    bad: dict[tuple[str, str], str] | None = None, names: tuple[str, ...] = NAMES
) -> list[Transfer]:
    """Return all transfers between `names`; those in `bad` failed."""
    bad = bad or {}
    return [
        Transfer(one, other, NET, None if (one, other) in bad else 1.0, bad.get((one, other), ""))
        for one in names
        for other in names
        if one != other
    ]


def texts(findings: list[Finding]) -> list[str]:
    return [f"{finding.severity.value}: {finding.text}" for finding in findings]


def test_nothing_is_said_of_pairs_that_meet() -> None:
    assert between(full()) == []


def test_a_pair_is_named() -> None:
    bad = {("b", "c"): "no answer in 3 s", ("c", "b"): "no answer in 3 s"}
    (finding,) = between(full(bad))
    assert finding.nodes == ("b", "c")
    assert texts([finding]) == [
        f"fault: b and c do not reach each other on {NET}: no answer in 3 s"
    ]


def test_a_fault_in_one_direction_is_reported_for_both_nodes() -> None:
    (finding,) = between(full({("c", "b"): "the connection is refused"}))
    assert finding.text == (
        f"c does not reach b on {NET}, though it is reached from there: the connection is refused"
    )


def test_a_node_that_reaches_nobody_is_named_once() -> None:
    bad = {(x, y): "no answer" for x in NAMES for y in NAMES if x != y and "d" in (x, y)}
    (finding,) = between(full(bad))
    assert finding == Finding(
        FindingSeverity.FAULT, "tcp", ("d",), f"d reaches nobody on {NET}: no answer"
    )


def test_a_network_that_carries_nothing_is_named_once() -> None:
    bad = {(x, y): "no route to host" for x in NAMES for y in NAMES if x != y}
    (finding,) = between(full(bad))
    assert finding.text == f"no node reaches another on {NET}: no route to host"
    assert finding.nodes == NAMES


def test_two_nodes_are_a_pair_and_no_network() -> None:
    bad = {("a", "b"): "no answer", ("b", "a"): "no answer"}
    (finding,) = between(full(bad, ("a", "b")))
    assert finding.text == f"a and b do not reach each other on {NET}: no answer"


def test_a_great_many_pairs_are_counted() -> None:
    names = tuple(f"n{number:02}" for number in range(20))
    bad = {
        (x, y): "no answer"
        for i, x in enumerate(names)
        for j, y in enumerate(names)
        if i % 2 == 0 and j % 2 == 0 and i != j
    }
    found = between(full(bad, names))
    assert len(found) == PAIRS_MAX + 1
    assert found[-1].text.startswith(f"and {45 - PAIRS_MAX} more pairs on {NET}, of ")


def test_a_slow_pair_is_a_warning() -> None:
    pairs = [
        p if p.sender != "b" or p.receiver != "d" else Transfer("b", "d", NET, 0.2) for p in full()
    ]
    (finding,) = between(pairs)
    assert (finding.severity, finding.kind, finding.nodes) == (
        FindingSeverity.WARNING,
        "slow",
        ("b", "d"),
    )


def test_the_worst_pair_of_each_network() -> None:
    pairs = [
        Transfer("a", "b", "x", 2.0),
        Transfer("b", "a", "x", 1.0),
        Transfer("a", "b", "y", None, "cut"),
    ]
    one, other = networks_found(pairs)
    assert (one.pairs, one.failed, one.median_gb_s, one.worst) == (1, 0, 1.5, pairs[1])
    assert (other.pairs, other.failed, other.median_gb_s, other.worst) == (1, 1, None, pairs[2])


@pytest.mark.parametrize(
    ("values", "severity", "text", "odd"),
    [
        (("1", "1", "2"), FindingSeverity.WARNING, "kernel: c has 2; the other 2 have 1", ("c",)),
        (
            ("1", "2", "2", "2"),
            FindingSeverity.WARNING,
            "kernel: a has 1; the other 3 have 2",
            ("a",),
        ),
        (("1", "2"), FindingSeverity.WARNING, "kernel: a has 1; b has 2", ("a", "b")),
        (
            ("1", "1", "2", "2"),
            FindingSeverity.WARNING,
            "kernel: a and b have 1; c and d have 2",
            ("a", "b", "c", "d"),
        ),
        (
            ("1", "1", None),
            FindingSeverity.WARNING,
            "kernel: c has none; the other 2 have 1",
            ("c",),
        ),
    ],
)
def test_the_odd_ones_are_named(
    values: tuple[str | None, ...], severity: FindingSeverity, text: str, odd: tuple[str, ...]
) -> None:
    reports = {n: {"kernel": v} if v else {} for n, v in zip(NAMES, values, strict=False)}
    assert differences(reports) == [Finding(severity, "differs", odd, text)]


def test_torch_and_nccl_must_agree() -> None:
    reports = {"a": {"NCCL": "2.27.5"}, "b": {"NCCL": "2.27.5"}, "c": {"NCCL": "2.21.5"}}
    (finding,) = differences(reports)
    assert finding.severity is FindingSeverity.FAULT


def test_nodes_that_agree() -> None:
    assert differences({"a": {"torch": "2.9"}, "b": {"torch": "2.9"}}) == []


def test_names_and_clocks() -> None:
    reports = {
        "a": NodeReport("a", {}, NameLookups(wrong=("the name b leads to 1.2.3.4 here",))),
        "b": NodeReport("b", {}, NameLookups(late=3)),
        "c": NodeReport("c", {}, NameLookups(unknown=("a",)), clock_s=-60.0),
    }
    assert texts(names_and_clocks(reports)) == [
        "fault: a: the name b leads to 1.2.3.4 here",
        "warning: b: 3 names of others were not looked up in time: does its name server answer?",
        UNKNOWN,
        "warning: the clock of c is 60 s behind the others'",
    ]


def test_findings_from_the_fabric_plan() -> None:
    node = NodeFabricView(
        "a", 0, (), ("mlx5_3:1 is DOWN",), None, "10.0.0.1", None, None, {}, None, ()
    )
    plan = PlanView("rdma", "RDMA over 7 rails", (), (node,), ("b has MTU 1500",), None)
    assert texts(fabric(plan)) == [
        "note: RDMA over 7 rails",
        "warning: b has MTU 1500",
        "warning: a: mlx5_3:1 is DOWN",
    ]
    tcp = PlanView("tcp", "TCP: b has no RDMA device that jobs can use", (), (), (), None)
    assert texts(fabric(tcp)) == ["warning: TCP: b has no RDMA device that jobs can use"]
    assert fabric(PlanView("open", "TCP: no node has any", (), (), (), None)) == []
    assert fabric(None) == []


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        ([FindingSeverity.NOTE], 0),
        ([FindingSeverity.NOTE, FindingSeverity.WARNING], 1),
        ([FindingSeverity.WARNING, FindingSeverity.FAULT], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst(severities: list[FindingSeverity], code: int) -> None:
    findings = worst_first(Finding(severity, "x", (), "") for severity in severities)
    assert [f.severity for f in findings] == sorted(severities, key=list(FindingSeverity).index)
    assert CheckReport((), {}, (), findings, (), {}, ()).exit_code == code


def test_output_is_read_and_the_better_of_two_tries_counts() -> None:
    output = CheckOutput()
    for line in (
        '# {"nodes":["a","b"],"networks":["10.0.0.0/24"]}',
        '# {"node":"a","facts":{"kernel":"6"},"names":{"wrong":[],"unknown":[],"late":0}}',
        "b to a on 10.0.0.0/24: no answer",
        '# {"step":"1/2","found":[[0,1,0,0.1,""]]}',
        '# {"step":"2/2","found":[[1,0,0,null,"no answer"]]}',
        '# {"step":"again","found":[[0,1,0,0.5,""]]}',
        '# {"step":"again","found":[[9,9,9,0.5,""]]}',
        "# {broken",
    ):
        assert not output.end
        output.take(line)
    assert output.nodes["a"].facts == {"kernel": "6"}
    assert output.pairs == (
        Transfer("a", "b", NET, 0.5),
        Transfer("b", "a", NET, None, "no answer"),
    )
    output.take('# {"end":true}')
    assert output.end
