"""The specifications of jobs that have not ended are in memory: their bytes are bounded."""

from msgspec import json, structs

from muster.protocol.ids import JobId, NodeName
from muster.protocol.instant import Instant
from muster.protocol.link.control_channel import Inventory
from muster.spec.model import JobSpec, Shell
from orchestrator.core.engine.apply import apply
from orchestrator.core.engine.turn import turn
from orchestrator.core.facts import cluster as cluster_facts
from orchestrator.core.facts.effects import Answer, Declined, RequestId, Result, Submitted
from orchestrator.core.facts.inputs import CancelReceived, Input, SubmitReceived
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State

SPEC = JobSpec(name="demo", run=Shell("x" * 1000))
SIZE = len(json.encode(SPEC))
LIMITS = Limits(user_spec_bytes_max=2 * SIZE, spec_bytes_max=3 * SIZE)


def cluster() -> State:
    """A node that is not connected, so that jobs wait."""
    state = State()
    inventory = Inventory("10.0.0.1", "m1")
    apply(
        state,
        cluster_facts.NodeRegistered(NodeName("n1"), "agent", "boot", "0.1.0", inventory),
        0.0,
    )
    return state


def answer(state: State, asked: Input) -> Result:
    effects = turn(state, asked, Instant(1.0, 1.0), LIMITS).effects
    (found,) = (effect.result for effect in effects if isinstance(effect, Answer))
    return found


def submit(state: State, user: str, spec: JobSpec = SPEC) -> Result:
    return answer(state, SubmitReceived(RequestId(1), spec, user, "", "digest", None))


def refused(result: Result) -> str:
    assert isinstance(result, Declined)
    assert result.code == "too_many_bytes"
    assert "cancel some" in result.hint
    return result.text


def test_a_user_may_have_so_many_bytes_and_all_users_more() -> None:
    state = cluster()
    for _ in range(2):
        assert isinstance(submit(state, "ann"), Submitted)
    assert "limits.spec_bytes_per_user_max" in refused(submit(state, "ann"))
    assert isinstance(submit(state, "bob"), Submitted)
    assert "limits.spec_bytes_max" in refused(submit(state, "bob"))
    assert "limits.spec_bytes_max" in refused(submit(state, "eve"))


def test_the_bytes_of_a_job_that_has_ended_count_no_more() -> None:
    state = cluster()
    large = structs.replace(SPEC, run=Shell("x" * (1000 + SIZE)))
    assert isinstance(submit(state, "ann", large), Submitted)
    refused(submit(state, "ann"))
    answer(state, CancelReceived(RequestId(2), JobId(1), "ann", "", None, force=False))
    assert state.spec_bytes == {}
    assert isinstance(submit(state, "ann"), Submitted)
