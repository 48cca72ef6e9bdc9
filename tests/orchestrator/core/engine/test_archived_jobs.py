"""Jobs that the state has forgotten, as they are in the archive."""

from muster.protocol.ids import JobId, NodeName, TaskId
from muster.protocol.link.control_channel import ForgetTask, StopTask, TaskReport
from muster.protocol.outcome import ExitStatus
from muster.protocol.states import TaskState
from orchestrator.core.engine.invariants import check
from orchestrator.core.engine.replay_job import replay_job
from orchestrator.core.facts import effects as a
from orchestrator.core.facts import inputs as s
from orchestrator.core.facts.base import Durability
from orchestrator.core.facts.jobs import JobForgotten
from tests.orchestrator.core.playbook import Cluster, prepared, spec

ONE, TWO = JobId(1), JobId(2)


def with_ended_job() -> Cluster:
    """Job 1 has run to its end on n1; job 2 runs there."""
    cluster = Cluster()
    cluster.join("n1")
    cluster.submit(spec(), "key", "digest")
    (task,) = cluster.run_gang(1)
    cluster.report(task, TaskState.CLEANED, prepared=prepared(), exit=ExitStatus(code=0))
    cluster.submit(spec())
    cluster.run_gang(2)
    return cluster


def archive(cluster: Cluster, *jobs: JobId) -> list[JobId]:
    """Say that these are in the archive; those that are gone because of it."""
    done = cluster.turn(s.JobsArchived(jobs))
    assert all(fact.durability is Durability.EPHEMERAL for fact in done.facts)
    return [fact.job for fact in done.facts if isinstance(fact, JobForgotten)]


def test_only_a_job_that_has_ended_is_forgotten() -> None:
    cluster = with_ended_job()
    assert archive(cluster, ONE, TWO, JobId(3)) == [ONE]
    assert archive(cluster, ONE) == [], "said again"
    assert list(cluster.state.jobs) == [TWO]
    assert (cluster.state.keys, cluster.state.forgotten) == ({}, 1)
    assert check(cluster.state) == []
    assert cluster.submit(spec()) == a.Submitted(JobId(3), created=True)


def test_it_can_be_rebuilt_from_its_facts_as_it_was() -> None:
    cluster = with_ended_job()
    wanted = cluster.job(1)
    facts = [fact for fact in cluster.facts if getattr(fact, "job", None) == ONE]
    found = replay_job((fact, cluster.now.wall) for fact in facts)
    assert found == wanted


def test_a_node_learns_of_its_tasks_as_of_any_that_are_over() -> None:
    cluster = with_ended_job()
    archive(cluster, ONE)
    task, node = TaskId("1.1.0"), NodeName("n1")
    cluster.sent.clear()
    cluster.join("n1", tasks=(TaskReport(task, TaskState.CLEANED),))
    assert ForgetTask(task) in cluster.sent[node]
    cluster.sent.clear()
    cluster.join("n1", tasks=(TaskReport(task, TaskState.STARTED, prepared=prepared()),))
    assert StopTask(task, "SIGKILL", 0.0, force=True) in cluster.sent[node]


def test_a_key_makes_no_second_job_while_the_first_goes_to_the_archive() -> None:
    """A client that searched the archive before the job came there must search again."""

    def submit(searched: int) -> a.Result:
        request = a.RequestId(99)
        cluster.turn(s.SubmitReceived(request, spec(), "ada", "key", "digest", searched=searched))
        return cluster.answers[request]

    cluster = with_ended_job()
    searched = cluster.state.forgotten
    assert submit(searched) == a.Submitted(ONE, created=False)
    archive(cluster, ONE)
    again = submit(searched)
    assert isinstance(again, a.Declined)
    assert again.code == a.SEARCH_AGAIN
    # A client that finds the job in the archive now does not get here.
    assert submit(cluster.state.forgotten) == a.Submitted(JobId(3), created=True)
