"""`muster wait` and `muster cancel`: codes, several jobs, times that pass, doing it twice."""

import json
import signal

import msgspec

from muster.http.job_actions import CancelRequest
from muster.protocol.states import JobState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view


def test_a_job_that_is_not_there_is_reported_before_any_is_waited_for(
    run: Run, fake: FakeCoordinator
) -> None:
    fake.put(job_view())
    done = run("wait", "42", "7")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"there is no job 7" in done.stderr


def test_wait_returns_the_first_code_that_is_not_0_in_the_order_given(
    run: Run, fake: FakeCoordinator
) -> None:
    for number, code in ((1, 0), (2, 122), (3, 17)):
        state = JobState.FAILED if code else JobState.SUCCEEDED
        fake.put(ended(job_view(number), state, code))
    assert run("wait", "1").returncode == 0
    assert run("wait", "1", "2", "3").returncode == 122
    done = run("wait", "3", "2", "1")
    assert (done.returncode, done.stdout) == (17, b"")
    assert done.stderr.splitlines()[0] == b"muster: job 3 FAILED (exit code 17)"


def test_wait_any_returns_when_the_first_ends(start: Start, fake: FakeCoordinator) -> None:
    for number in (1, 2, 3):
        fake.put(job_view(number))
    process = start("wait", "--any", "1", "2", "3")
    fake.wait_for_request("/wait", 3)
    fake.put(ended(job_view(2), JobState.FAILED, 5))
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5


def test_wait_any_of_jobs_that_have_ended_takes_the_one_that_did_first(
    run: Run, fake: FakeCoordinator
) -> None:
    for number, code, at in ((1, 4, 9.0), (2, 5, 7.0), (3, 6, 8.0)):
        view = ended(job_view(number), JobState.FAILED, code)
        fake.put(msgspec.structs.replace(view, ended_at=timestamp(at)))
    assert run("wait", "--any", "1", "2", "3").returncode == 5


def test_a_time_that_passes_is_125(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(1))
    fake.put(job_view(2))
    done = run("wait", "1", "--timeout", "100ms")
    assert (done.returncode, done.stderr) == (
        125,
        b"muster: job 1 has not ended after 0s; nothing was stopped\n",
    )
    assert run("wait", "1", "2", "--any", "--timeout", "100ms").returncode == 125
    assert run("wait", "1", "--timeout", "soon").returncode == 2


def test_waiting_for_an_unknown_job_among_any_is_an_error(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(1))
    done = run("wait", "--any", "1", "9")
    assert (done.returncode, done.stderr) == (125, b"muster: there is no job 9\n")


def test_ctrl_c_while_waiting_stops_nothing(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view(1))
    fake.put(job_view(2))
    process = start("wait", "1", "2")
    fake.wait_for_request("/wait")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert err == b"muster: detached; jobs 1 2 continue: muster wait 1 2 | muster cancel 1 2\n"
    assert not fake.script.cancelled


def test_cancel_says_what_it_was_answered(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    done = run("cancel", "42", "--reason", "wrong data", "--grace", "1m30s", "--force")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"muster: job 42 STOPPING\n"
    assert fake.script.cancelled == [(42, CancelRequest("wrong data", 90.0, True))]


def test_cancelling_an_ended_job_is_no_error(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    done = run("cancel", "42")
    assert (done.returncode, done.stderr) == (
        0,
        b"muster: job 42 had already ended: SUCCEEDED\n",
    )


def test_a_failed_cancel_does_not_stop_the_others(run: Run, fake: FakeCoordinator) -> None:
    fake.script.first_answers = [
        (404, b'{"type":"x","title":"x","status":404,"code":"x","detail":"gone"}', "x/json")
    ]
    fake.put(job_view())
    done = run("cancel", "7", "42")
    assert done.returncode == 125
    assert done.stderr == b"muster: gone\nmuster: job 42 STOPPING\n"


def test_cancel_can_wait_for_the_end(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view())
    process = start("cancel", "--wait", "42")
    fake.wait_for_request("/wait")
    fake.put(ended(job_view(), JobState.CANCELLED, 121))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert err.splitlines()[-1] == b"muster: job 42 CANCELLED"


def test_as_json_both_print_the_jobs_and_nothing_else(run: Run, fake: FakeCoordinator) -> None:
    fake.put(ended(job_view(1), JobState.SUCCEEDED, 0))
    fake.put(ended(job_view(2), JobState.FAILED, 3))
    fake.put(job_view(3))
    done = run("wait", "1", "2", "--json")
    assert done.returncode == 3
    assert [job["exit_code"] for job in json.loads(done.stdout)["jobs"]] == [0, 3]
    cancelled = run("cancel", "1", "3", "--json")
    assert [job["state"] for job in json.loads(cancelled.stdout)["jobs"]] == [
        "SUCCEEDED",
        "STOPPING",
    ]
