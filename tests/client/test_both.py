"""The two clients are one API, and what they share is found in the same places."""

import asyncio
import inspect
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import muster
from muster.client import (
    ApiError,
    AsyncClient,
    Client,
    NoSuchJobError,
    NoSuchNodeError,
    SettingsError,
)
from muster.http import views as api
from muster.protocol.states import JobState
from tests.client.both import MakeClient, make
from tests.client.fake_coordinator import TOKEN, FakeCoordinator, Script, job_view, running
from tools import sync_client

__all__ = ["make"]


def test_both_clients_are_made_from_one_source() -> None:
    assert sync_client.TARGET.read_text() == sync_client.sync_client()


def test_every_call_is_documented() -> None:
    for name, found in vars(Client).items():
        if not name.startswith("_"):
            assert inspect.getdoc(found), name


def test_they_are_imported_from_the_top_and_the_plain_one_without_aiohttp() -> None:
    assert (muster.Client, muster.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        muster.Klient  # noqa: B018
    program = (
        "import sys, json, muster; before = 'muster.client' in sys.modules; muster.Client;"
        "print(json.dumps([before, 'aiohttp' in sys.modules, 'asyncio' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == [False, False, False]


def test_without_arguments_they_find_what_muster_finds(
    make: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Script(jobs={42: job_view()})) as fake:
        monkeypatch.setenv("MUSTER_URL", fake.url)
        monkeypatch.setenv("MUSTER_TOKEN", TOKEN)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert make().job(42).id == 42
        monkeypatch.delenv("MUSTER_TOKEN")
        assert make(token=TOKEN).job(42).id == 42
        with pytest.raises(SettingsError, match="neither MUSTER_TOKEN nor"):
            make(fake.url)


def node_view(name: str) -> api.NodeView:
    return api.NodeView(
        name, "connected", api.Reason("free", "free"), "", "default", 0, "", 1, 1, {}, None,
        None, None, "0.1.0",
    )  # fmt: skip


def test_all_nodes_come_over_pages(make: MakeClient) -> None:
    names = [f"n{number}" for number in range(5)]
    nodes = tuple(node_view(name) for name in names)
    with running(Script(nodes=nodes, nodes_a_page=2)) as fake:
        client = make(fake.url, TOKEN)
        found = client.nodes()
        assert ([node.name for node in found.nodes], found.cursor) == (names, None)
        assert len(fake.script.requests) == 3
        assert client.node("n4").name == "n4"


def test_jobs_and_nodes_are_found_by_name(make: MakeClient) -> None:
    jobs = {number: job_view(number, name=name) for number, name in ((1, "eval"), (2, "train"))}
    node = node_view("gpu-01")
    with running(Script(jobs=jobs, nodes=(node,))) as fake:
        client = make(fake.url, TOKEN)
        assert [client.find_job(text) for text in ("eval", "train", "last", "7")] == [1, 2, 2, 7]
        with pytest.raises(NoSuchJobError) as caught:
            client.find_job("trian")
        assert caught.value.hint == "did you mean train?"
        assert client.node("gpu-01") == node
        with pytest.raises(NoSuchNodeError) as unknown:
            client.node("gpu-1")
        assert unknown.value.hint == "did you mean gpu-01?"
        with pytest.raises(NoSuchNodeError) as far:
            client.node("gpu-09")
        assert far.value.hint == "`muster nodes` lists them"


def test_all_jobs_come_over_pages(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.client.endpoints._PAGE_MAX", 2)
    with running(Script(jobs={number: job_view(number) for number in range(1, 6)})) as fake:
        client = make(fake.url, TOKEN)
        found = client.all_jobs(states=[JobState.RUNNING])
        assert ([job.id for job in found.jobs], found.cursor) == ([5, 4, 3, 2, 1], None)
        some = client.all_jobs(limit=3)
        assert ([job.id for job in some.jobs], some.cursor) == ([5, 4, 3], "3")


def test_a_page_without_the_job_is_not_the_end(make: MakeClient) -> None:
    with running(Script(jobs={1: job_view(1, name="eval")})) as fake:
        client = make(fake.url, TOKEN)
        client.version()
        empty = (200, b'{"jobs": [], "cursor": "9"}', "application/json")
        version = msgspec.json.encode(client.version())
        fake.script.first_answers = [(200, version, "application/json"), empty, empty]
        assert client.find_job("eval") == 1


def test_a_reader_may_leave_early_and_a_call_may_be_cancelled() -> None:
    async def main(fake: FakeCoordinator) -> None:
        async with AsyncClient(fake.url, TOKEN) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.wait(42)
            waits = [asyncio.wait_for(client.wait(42), 20) for _ in range(3)]
            ended = asyncio.gather(*waits)
            await asyncio.sleep(0)
            fake.put(job_view(state=JobState.SUCCEEDED, exit_code=0))
            assert [summary.exit_code for summary in await ended] == [0, 0, 0]

    with running(Script(jobs={42: job_view()})) as fake:
        asyncio.run(main(fake))


@pytest.mark.parametrize("job", [42, 43])
def test_an_answer_that_is_cut_is_asked_for_again(make: MakeClient, job: int) -> None:
    """A coordinator that was killed in the middle of it: also where it refuses."""
    with running(Script(jobs={42: job_view()}, halves=1)) as fake:
        client = make(fake.url, TOKEN)
        if job == 42:
            assert client.job(job).id == job
        else:
            with pytest.raises(ApiError, match="there is no job 43"):
                client.job(job)
        assert len(fake.script.requests) == 2


def test_a_client_serves_several_event_loops() -> None:
    with running(Script(jobs={42: job_view()})) as fake:
        client = AsyncClient(fake.url, TOKEN)

        async def ask() -> int:
            return (await client.job(42)).id

        async def ask_and_close() -> int:
            async with client:
                return await ask()

        with asyncio.Runner() as first, asyncio.Runner() as second:
            assert [first.run(ask()), second.run(ask()), first.run(ask())] == [42, 42, 42]
            assert [first.run(ask_and_close()), second.run(ask_and_close())] == [42, 42]
        assert asyncio.run(ask_and_close()) == 42


def test_bare_names_of_variables_take_the_callers_values(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pass only those, like a job file; the coordinator refuses one that is not set."""
    monkeypatch.setenv("HF_HOME", "/data/hf")
    monkeypatch.delenv("NOT_SET", raising=False)
    with running() as fake:
        client = make(fake.url, TOKEN)
        client.submit({"run": "x.py", "env": ["HF_HOME", "A=1", "NOT_SET"]}, key="list")
        client.submit({"run": "x.py", "env": {"HF_HOME": None, "HOME": "/x"}}, key="map")
        roles = {"worker": {"env": {"HF_HOME": None}}, "launcher": {"nproc_per_node": 1}}
        client.submit({"run": "x.py", "roles": roles}, key="roles")
        sent = {key: mapping for key, (_, mapping) in fake.script.submitted.items()}
    assert sent["list"]["env"] == ["HF_HOME=/data/hf", "A=1", "NOT_SET"]
    assert sent["map"]["env"] == {"HF_HOME": "/data/hf", "HOME": "/x"}
    assert sent["roles"]["roles"] == {
        "worker": {"env": {"HF_HOME": "/data/hf"}},
        "launcher": {"nproc_per_node": 1},
    }
