"""The canonical spelling reads back as the same job."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.failure_kinds import FailureKind
from muster.spec import units
from muster.spec.env import check_name
from muster.spec.errors import InvalidValueError
from muster.spec.model import (
    Argv,
    JobSpec,
    Launcher,
    Placement,
    Rendezvous,
    Resources,
    Retry,
    Role,
    Roles,
    Shell,
    Stop,
    Warn,
)
from muster.spec.parse import parse_json, parse_mapping
from muster.spec.serialize import to_mapping


def may_be_set(name: str) -> bool:
    try:
        check_name(name)
    except InvalidValueError:
        return False
    return True


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,62}", fullmatch=True).filter(lambda name: name != "last")
NODE_NAMES = st.from_regex(r"[a-z0-9]{1,8}(-[0-9]{1,3})?", fullmatch=True)
LABEL = st.from_regex(r"[ -~]{1,12}", fullmatch=True)
LABELS = st.dictionaries(LABEL, LABEL, max_size=3)
MILLIS = st.integers(0, 86_400_000).map(lambda millis: millis / 1000)
WORDS = st.lists(TEXT, max_size=4)
TRAINING = WORDS.map(lambda rest: Argv(("train.py", *rest))) | WORDS.map(
    lambda rest: Argv(("-m", "pkg.train", *rest))
)
PLAIN_ARGV = WORDS.map(lambda rest: Argv(("prog", *rest)))
PLAIN = PLAIN_ARGV | TEXT.filter(str.strip).map(Shell)
PATHS = st.from_regex(r"/[a-z0-9/._ -]{0,20}", fullmatch=True)


NPROC = st.integers(1, 1024)
ENV = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True).filter(may_be_set), TEXT, max_size=4
)


def roles(runs: st.SearchStrategy[Any]) -> st.SearchStrategy[Role]:
    return st.builds(Role, st.none() | runs, st.none() | NPROC, st.just({}) | ENV)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    launcher = draw(st.sampled_from(Launcher))
    gpu = draw(st.none() | st.integers(1, units.MAX_GPUS_PER_NODE))
    user = draw(st.integers(0, 9))
    codes = st.lists(st.integers(1, 255), unique=True, max_size=3).map(tuple)
    failures = st.lists(st.sampled_from(FailureKind), unique=True, max_size=3).map(tuple)
    nodes = draw(st.integers(1, 3))
    torchrun = launcher.torchruns
    most = draw(st.none() | st.integers(nodes + 1, 9)) if torchrun else None
    rendezvous = Rendezvous.C10D
    if most is None:
        rendezvous = draw(st.sampled_from(Rendezvous)) if torchrun else Rendezvous.STATIC
    names = st.lists(NODE_NAMES, unique=True, max_size=3).map(tuple)
    include = draw(st.just(()) | st.just(tuple(f"n{i}" for i in range(nodes))))
    limit = draw(st.none() | MILLIS.filter(lambda seconds: seconds >= 3))
    warn = st.just(Warn("SIGUSR1", 1.5)) if limit else st.none()
    runs = PLAIN
    if launcher is not Launcher.NONE:
        runs = TRAINING if torchrun else PLAIN_ARGV | TRAINING
    nproc_on = (
        draw(st.just({}) | st.dictionaries(st.sampled_from(include), NPROC)) if include else {}
    )
    return JobSpec(
        name=draw(NAMES),
        run=draw(runs),
        nodes=nodes,
        max_nodes=most,
        rendezvous=rendezvous,
        resources=Resources(
            gpu,
            draw(st.none() | st.just("H100")) if gpu else None,
            draw(st.none() | st.integers(1, 512)),
            draw(st.none() | st.integers(1, 2**42)),
        ),
        nproc_per_node=None if nproc_on else draw(st.none() | NPROC),
        nproc_on=nproc_on,
        roles=draw(st.builds(Roles, roles(runs), roles(runs))),
        workdir=draw(st.none() | PATHS),
        python=draw(st.none() | PATHS | st.just("python3.12")),
        setup=draw(st.none() | PLAIN),
        launcher=launcher,
        env=draw(ENV),
        time_limit_s=limit,
        lease_s=draw(st.none() | MILLIS.filter(lambda seconds: seconds >= 15)),
        checkpoint_dir=draw(st.none() | PATHS),
        stop=Stop(
            draw(st.sampled_from(["SIGTERM", "SIGINT", "SIGUSR1"])),
            draw(MILLIS),
            draw(st.none() | warn),
        ),
        retry=Retry(
            draw(st.integers(0, 9)),
            user,
            draw(codes) if user else (),
            draw(failures) if user else (),
            draw(MILLIS),
        ),
        priority=draw(st.integers(0, 100)),
        pool=draw(NAMES),
        placement=Placement(include, draw(names) if not include else (), draw(LABELS)),
    )


@given(specs())
def test_round_trip(spec: JobSpec) -> None:
    mapping = to_mapping(spec)
    assert parse_mapping(mapping) == spec
    assert parse_json(json.dumps(mapping)) == spec


@given(specs())
def test_specs_travel_as_messages(spec: JobSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_the_default_start_method_is_shown_where_it_has_an_effect() -> None:
    assert to_mapping(parse_mapping({"run": "x.py"}))["start_method"] == "fork"
    alone = parse_mapping({"run": ["x"], "launcher": "none"})
    assert "start_method" not in to_mapping(alone)
