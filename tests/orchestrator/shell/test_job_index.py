"""The index of jobs against looking at all of them, live and after a replay."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.ids import JobId
from muster.protocol.outcome import Cause, CauseCode, Outcome
from muster.protocol.states import JobState
from muster.spec.parse import parse_mapping
from orchestrator.core.engine.apply import apply
from orchestrator.core.facts import jobs as f
from orchestrator.core.model.job import JobPhase
from orchestrator.core.model.state import State
from orchestrator.core.model.status import job_state
from orchestrator.shell.job_index import JobIndex

SPEC = parse_mapping({"run": ["/bin/true"], "launcher": "none"})
NAMES = ("a", "b")
OUTCOMES = (
    Cause(CauseCode.CANCELLED, Outcome.CANCELLED, "x"),
    Cause(CauseCode.PREPARE_REFUSED, Outcome.NEVER_STARTED, "x"),
)


@st.composite
def histories(draw: st.DrawFn) -> list[f.Fact]:
    facts: list[f.Fact] = []
    open_jobs: list[JobId] = []
    for number in range(1, draw(st.integers(1, 25))):
        spec = msgspec.structs.replace(SPEC, name=draw(st.sampled_from(NAMES)))
        facts.append(f.JobSubmitted(JobId(number), spec, draw(st.sampled_from(("x", "y")))))
        open_jobs.append(JobId(number))
        if draw(st.booleans()):
            job = draw(st.sampled_from(open_jobs))
            facts.append(f.JobChanged(job, "x", name=draw(st.sampled_from(NAMES))))
        if draw(st.booleans()):
            job = open_jobs.pop(draw(st.integers(0, len(open_jobs) - 1)))
            facts.append(f.JobEnded(job, draw(st.sampled_from(OUTCOMES))))
            if draw(st.booleans()):
                facts.append(f.JobForgotten(job))
    return facts


@given(
    facts=histories(),
    states=st.one_of(st.none(), st.sets(st.sampled_from(JobState), min_size=1, max_size=3)),
    user=st.sampled_from((None, "x", "y", "nobody")),
    name=st.sampled_from((None, *NAMES)),
)
def test_nothing_is_missing_and_live_is_as_replayed(
    facts: list[f.Fact], states: set[JobState] | None, user: str | None, name: str | None
) -> None:
    state = State()
    live = JobIndex(state)
    for fact in facts:
        apply(state, fact, 0.0)
        live.observe(state, [fact])
    wanted = {
        job.id
        for job in state.jobs.values()
        if (states is None or job_state(job) in states)
        and user in (None, job.user)
        and name in (None, job.spec.name)
    }
    for index in (live, JobIndex(state)):
        found = index.candidates(states=states, user=user, name=name)
        assert sorted(set(found)) == list(found)
        assert set(found) >= wanted
        still = [job.id for job in state.jobs.values() if job.phase is not JobPhase.ENDED]
        assert list(index.open) == still
        for each in JobState:
            ended = [
                job
                for job in state.jobs.values()
                if job.phase is JobPhase.ENDED and job_state(job) is each
            ]
            assert index.ended(each) == len(ended)


def test_rare_jobs_are_found_among_few() -> None:
    state = State()
    index = JobIndex(state)
    for number in range(1, 1001):
        facts: list[f.Fact] = [
            f.JobSubmitted(JobId(number), SPEC, "rare" if number == 7 else "often"),
            f.JobEnded(JobId(number), OUTCOMES[number == 9]),
        ]
        if number == 500:
            facts.pop()
        for fact in facts:
            apply(state, fact, 0.0)
        index.observe(state, facts)
    assert list(index.candidates(user="rare")) == [7]
    assert list(index.candidates(states=[JobState.QUEUED, JobState.RUNNING])) == [500]
    assert list(index.candidates(states=[JobState.FAILED], user="often")) == [9]
    assert index.candidates(user="nobody") == ()
