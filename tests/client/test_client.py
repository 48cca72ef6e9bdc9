"""Both clients against a real server that goes away, comes back, cuts streams and refuses."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from muster.client import (
    ApiError,
    BadAnswerError,
    ClientError,
    LogQuery,
    SettingsError,
    UnreachableError,
)
from muster.http import views as api
from muster.protocol.states import JobState
from muster.protocol.timestamp import timestamp
from tests.client.both import MakeClient, make
from tests.client.fake_coordinator import (
    TOKEN,
    FakeCoordinator,
    Script,
    ended,
    job_view,
    record,
    running,
)


@pytest.fixture
def fake() -> Iterator[FakeCoordinator]:
    with running(Script(jobs={42: job_view()})) as coordinator:
        yield coordinator


__all__ = ["make"]


def data_of(entries: list[api.LogRecord | api.LogTrailer]) -> list[str | None]:
    return [entry.data for entry in entries if isinstance(entry, api.LogRecord)]


def test_a_job_is_read_with_all_of_its_types(make: MakeClient, fake: FakeCoordinator) -> None:
    assert make(fake.url, TOKEN).job(42) == job_view()


def test_the_coordinators_clock_is_known_after_an_answer(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    client = make(fake.url, TOKEN)
    client.version()
    assert client.server_time == timestamp(1_700_000_123)


def test_a_submit_lasts_over_a_restart_and_is_one_job(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.stop()
    notes: list[tuple[ClientError, float]] = []
    back = threading.Event()

    def come_back(error: ClientError, patience_s: float) -> None:
        notes.append((error, patience_s))
        fake.start()
        back.set()

    client = make(fake.url, TOKEN, on_trouble=come_back)
    first = client.submit({"run": "train.py"}, "key-1")
    assert back.is_set()
    assert client.submit({"run": "train.py"}, "key-1").id == first.id
    assert len(fake.script.submitted) == 1
    assert isinstance(notes[0][0], UnreachableError)
    assert len(notes) == 1, "one note for one outage"


def test_an_answer_of_a_starting_coordinator_is_asked_for_again(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.script.first_answers = [(503, b"<html>starting", "text/html")] * 2
    assert make(fake.url, TOKEN).job(42).id == 42
    assert len(fake.script.requests) == 3


def test_wait_lasts_over_a_restart(make: MakeClient, fake: FakeCoordinator) -> None:
    def restart() -> None:
        fake.wait_for_request("/wait")
        fake.stop()
        fake.script.jobs[42] = ended(job_view(), JobState.FAILED, 17)
        fake.start()

    thread = threading.Thread(target=restart)
    thread.start()
    summary = make(fake.url, TOKEN).wait(42)
    thread.join()
    assert (summary.state, summary.exit_code) == (JobState.FAILED, 17)


def test_wait_gives_the_job_as_it_is_when_the_time_is_over(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    assert make(fake.url, TOKEN).wait(42, 0.01).state is JobState.RUNNING


def test_wait_goes_on_where_a_coordinator_that_stops_answers_early(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    running = msgspec.json.encode(job_view())
    fake.script.first_answers = [(200, running, "application/json")]
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    assert make(fake.url, TOKEN).wait(42, 20).state is JobState.SUCCEEDED


def test_no_record_is_lost_or_repeated_when_the_stream_is_cut(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.script.cuts = [3, 0, 2]
    fake.script.logs = [record(number, f"line {number}\n") for number in range(1, 10)]
    entries = list(make(fake.url, TOKEN).logs(42))
    assert data_of(entries) == [f"line {number}\n" for number in range(1, 10)]
    assert isinstance(entries[-1], api.LogTrailer)
    assert len(fake.script.requests) == 4


def test_a_trailer_that_says_more_will_come_is_resumed(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.script.restarts = [2, 1]
    fake.script.logs = [record(number, f"{number}") for number in range(1, 6)]
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    entries = list(make(fake.url, TOKEN).logs(42, LogQuery(follow=True)))
    assert data_of(entries) == ["1", "2", "3", "4", "5"]
    assert isinstance(entries[-1], api.LogTrailer)
    assert entries[-1].end


def test_following_lasts_over_a_restart(make: MakeClient, fake: FakeCoordinator) -> None:
    fake.log(record(1, "before"))
    entries = make(fake.url, TOKEN).logs(42, LogQuery(follow=True))
    assert data_of([next(entries)]) == ["before"]
    fake.stop()
    fake.script.logs.append(record(2, "after"))
    fake.start()
    assert data_of([next(entries)]) == ["after"]
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    trailer = next(entries)
    assert isinstance(trailer, api.LogTrailer)
    assert trailer.exit_code == 0


def test_the_tail_is_asked_for_once(make: MakeClient, fake: FakeCoordinator) -> None:
    fake.script.cuts = [1]
    fake.script.logs = [record(1, "a"), record(2, "b")]
    list(make(fake.url, TOKEN).logs(42, LogQuery(tail=2, rank=0, attempt=1)))
    assert [("tail=2" in line, "rank=0" in line) for line in fake.script.requests] == [
        (True, True),
        (False, True),
    ]


def test_output_after_the_tail_is_complete_however_often_the_stream_is_cut(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    """Also where it is cut before the first of it has come."""
    entries = make(fake.url, TOKEN).logs(42, LogQuery(follow=True, tail=2))
    with ThreadPoolExecutor(1) as reader:
        first = reader.submit(next, entries)
        fake.wait_for_request("follow=1")
        fake.stop()
        fake.script.logs += [record(number, f"{number}") for number in range(1, 6)]
        fake.start()
        assert data_of([first.result()]) == ["1"]
    fake.put(ended(job_view(), JobState.SUCCEEDED, 0))
    assert data_of(list(entries)) == ["2", "3", "4", "5"]


def test_a_line_that_is_no_record_is_an_error_and_not_the_end(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.script.first_answers = [(200, b'{"unexpected": 1}\n', "application/x-ndjson")]
    with pytest.raises(BadAnswerError, match="cannot be read"):
        list(make(fake.url, TOKEN).logs(42))


def test_an_empty_line_says_only_that_the_server_lives(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    fake.script.first_answers = [(200, b'\n\n{"end": true}\n', "application/x-ndjson")]
    assert list(make(fake.url, TOKEN).logs(42)) == [api.LogTrailer(end=True)]


def test_a_refusal_carries_the_coordinators_problem(
    make: MakeClient, fake: FakeCoordinator
) -> None:
    with pytest.raises(ApiError, match="there is no job 7") as caught:
        make(fake.url, TOKEN).job(7)
    assert caught.value.problem.code == "unknown_job"
    assert len(fake.script.requests) == 1, "a refusal is final"


def test_a_wrong_token_is_refused_once(make: MakeClient, fake: FakeCoordinator) -> None:
    with pytest.raises(ApiError) as caught:
        make(fake.url, "muster_admin_other_x").nodes()
    assert caught.value.status == 401
    assert len(fake.script.requests) == 1


def test_an_answer_of_another_service_is_named(make: MakeClient, fake: FakeCoordinator) -> None:
    fake.script.first_answers = [(404, b"<html>not here</html>", "text/html")]
    with pytest.raises(ApiError, match="not from a coordinator"):
        make(fake.url, TOKEN).nodes()


def test_an_answer_of_another_shape_is_named(make: MakeClient, fake: FakeCoordinator) -> None:
    fake.script.first_answers = [(200, b'{"nodes": 3}', "application/json")]
    with pytest.raises(BadAnswerError, match="GET /v1/nodes"):
        make(fake.url, TOKEN).nodes()


def test_nobody_listening_is_said_with_what_to_do(make: MakeClient) -> None:
    with running() as fake:
        pass
    begin = time.monotonic()
    with pytest.raises(UnreachableError, match="nothing listens there") as caught:
        make(fake.url, TOKEN).nodes()
    assert "systemctl start muster-coordinator" in caught.value.hint
    assert caught.value.url == fake.url
    assert time.monotonic() - begin < 60, "it gives up"


def test_a_stream_that_does_not_begin_is_not_waited_for_for_ever(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that is stopped: the kernel still takes connections for it."""
    for module in ("sync_transport", "async_transport"):
        monkeypatch.setattr(f"muster.client.{module}.READ_TIMEOUT_S", 0.1)
    for module in ("client", "async_client"):
        monkeypatch.setattr(f"muster.client.{module}.CHANGE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        client = make(f"http://127.0.0.1:{stopped.getsockname()[1]}", TOKEN)
        with pytest.raises(UnreachableError, match="does not answer in time"):
            list(client.logs(42))


def test_an_address_in_the_clear_is_refused_before_the_token_is_sent(make: MakeClient) -> None:
    with pytest.raises(SettingsError, match="without TLS"):
        make("http://192.0.2.1:7077", TOKEN)


def test_a_stream_that_never_brings_anything_is_given_up(
    make: MakeClient, fake: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.client.resumable_stream._PAUSE_MAX_S", 0.0)
    trailer = b'{"end": false, "reason": "the logs cannot be read"}\n'
    fake.script.first_answers = [(200, trailer, "application/x-ndjson")] * 100
    with pytest.raises(
        BadAnswerError, match="keeps closing the log stream: the logs cannot be read"
    ):
        list(make(fake.url, TOKEN).logs(42))
