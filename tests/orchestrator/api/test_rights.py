"""Two users, and what neither can learn of or do to the other's jobs."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from msgspec.structs import replace

from muster.protocol.link.control_channel import (
    ArrangeTask,
    Fingerprint,
    Inventory,
    PrepareTask,
)
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.gpus import GpuDevice
from muster.protocol.states import TaskState
from tests.orchestrator.fake_agent import DEADLINE_S, connect, prepared
from tests.orchestrator.process import CoordinatorProcess, add_token, set_user
from tests.orchestrator.user import User, user_of

SECRET = "canary-7712"
READS = ("", "/spec", "/env", "/fabric", "/explain", "/events", "/evidence", "/logs")
VERBS: dict[str, Any] = {
    "cancel": {},
    "signal": {"signal": "TERM"},
    "stacks": {},
    "rerun": {"set": ["run=env"]},
}


@asynccontextmanager
async def person(
    coordinator: CoordinatorProcess, name: str, role: str = "user", *teams: str
) -> AsyncIterator[User]:
    token = add_token(coordinator, name, role, teams)
    headers = coordinator.headers(token)
    async with aiohttp.ClientSession(coordinator.url, headers=headers) as http:
        yield User(http)


async def register(coordinator: CoordinatorProcess) -> None:
    async with connect(coordinator, "n1") as agent:
        await agent.hello()


async def asked(user: User, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and whole body."""
    async with user.http.request(method, path, json=body) as answer:
        return answer.status, await answer.text()


async def problem(user: User, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and code of a refusal, which says nothing of the job's content."""
    status, text = await asked(user, method, path, body)
    assert SECRET not in text
    assert status >= 400, (path, text)
    return status, json.loads(text)["code"]


async def refused_everything(user: User, job: int, expected: tuple[int, str]) -> None:
    for path in READS:
        assert await problem(user, "GET", f"/v1/jobs/{job}{path}") == expected, path
    for verb, body in VERBS.items():
        assert await problem(user, "POST", f"/v1/jobs/{job}/{verb}", body) == expected, verb
    change = await problem(user, "PATCH", f"/v1/jobs/{job}", {"hold": True})
    assert change == expected


async def test_bob_cannot_read_or_change_what_is_anns(coordinator: CoordinatorProcess) -> None:
    await register(coordinator)
    async with person(coordinator, "ann") as ann, person(coordinator, "bob", "user") as bob:
        job = await ann.submit("same-key", env={"WANDB_API_KEY": SECRET, "PLAIN": SECRET})
        await refused_everything(bob, job, (403, "not_your_job"))
        line = await bob.get(f"/v1/jobs/{job}/wait?timeout_s=0")
        assert (line["user"], line["reason"]) == ("ann", {"code": "waiting", "text": ""})
        (listed,) = (each for each in (await bob.get("/v1/jobs"))["jobs"] if each["id"] == job)
        assert listed == line
        assert (await ann.get(f"/v1/jobs/{job}/wait?timeout_s=0"))["reason"]["text"]
        # A key is its user's: it neither finds nor reveals another's job.
        assert await bob.submit("same-key", name="mine") != job
        assert (await asked(ann, "POST", f"/v1/jobs/{job}/cancel"))[0] == 202


async def test_bob_cannot_act_on_a_job_before_it_is_submitted(
    coordinator: CoordinatorProcess,
) -> None:
    """A request for the next number that is decided before the job is there is no way in."""
    await register(coordinator)
    async with person(coordinator, "ann") as ann, person(coordinator, "bob") as bob:
        after = 1 + await ann.submit()
        slow = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await slow.wait()
            yield b"}"

        cancel = asyncio.create_task(bob.http.post(f"/v1/jobs/{after}/cancel", data=body()))
        while not cancel.done() and not await _refused(bob, after):
            pass
        assert await ann.submit() == after
        slow.set()
        async with await cancel as answer:
            assert answer.status in (403, 404)
        assert (await ann.get(f"/v1/jobs/{after}"))["state"] == "QUEUED"


async def _refused(user: User, job: int) -> bool:
    return (await asked(user, "GET", f"/v1/jobs/{job}/wait?timeout_s=0"))[0] == 404


async def test_events_are_of_nodes_and_of_ones_own_jobs(coordinator: CoordinatorProcess) -> None:
    await register(coordinator)
    async with (
        person(coordinator, "ann") as ann,
        person(coordinator, "bob") as bob,
        person(coordinator, "olga", "operator") as olga,
    ):
        anns = await ann.submit(env={"PLAIN": SECRET})
        bobs = await bob.submit()
        for user, jobs in ((bob, {None, bobs}), (ann, {None, anns}), (olga, {None, anns, bobs})):
            after, found = 0, []
            while events := (await user.get(f"/v1/events?after={after}&limit=3"))["events"]:
                found += events
                after = events[-1]["seq"]
            seen = {event["job"] for event in found if event["job"] in {None, anns, bobs}}
            assert seen == jobs
            assert (SECRET in json.dumps(found)) is (anns in jobs)
        headers = {"Accept": "text/event-stream"}
        async with bob.http.get("/v1/events", headers=headers) as stream:
            text = ""
            while f'"job":{bobs},' not in text:
                text += (await stream.content.readline()).decode()
        assert SECRET not in text
        assert f'"job":{anns},' not in text


async def test_an_operator_works_without_being_an_admin(coordinator: CoordinatorProcess) -> None:
    await register(coordinator)
    async with person(coordinator, "ann") as ann, person(coordinator, "olga", "operator") as olga:
        job = await ann.submit(env={"WANDB_API_KEY": SECRET})
        for path in READS:
            status, text = await asked(olga, "GET", f"/v1/jobs/{job}{path}")
            assert (status, SECRET in text) == (200, False), path
        # It would hand the hidden values of ann's job to a job of olga's.
        rerun = await problem(olga, "POST", f"/v1/jobs/{job}/rerun", {"set": ["run=env"]})
        assert rerun == (403, "not_your_job")
        assert (await asked(olga, "POST", f"/v1/jobs/{job}/cancel"))[0] == 202
        drain = {"reason": "a bad DIMM"}
        assert (await asked(olga, "POST", "/v1/nodes/n1/drain", drain))[0] == 200
        assert await problem(ann, "POST", "/v1/nodes/n1/resume", {}) == (403, "forbidden")
        assert (await asked(olga, "POST", "/v1/nodes/n1/resume", {"check": False}))[0] == 200


def test_entries_without_a_role_are_named(tmp_path: Path) -> None:
    """They are admins', as before there were roles."""
    made, path = CoordinatorProcess(tmp_path), tmp_path / "tokens"
    entries = json.loads(path.read_text())["tokens"]
    (admin,) = (entry for entry in entries if entry["id"] == "admin1")
    del admin["role"]
    path.write_text(json.dumps({"tokens": entries}))
    with made.start() as process:
        pass
    (warning,) = process.events("tokens_without_role")
    assert warning["entries"] == ["admin1 (admin-user)"]
    assert "muster user set NAME --role user" in warning["why"]


async def test_a_viewer_scrapes_and_submits_nothing(coordinator: CoordinatorProcess) -> None:
    async with person(coordinator, "prometheus", "viewer") as viewer:
        assert (await asked(viewer, "GET", "/metrics"))[0] == 200
        assert (await asked(viewer, "GET", "/v1/jobs"))[0] == 200
        job = {"run": ["/bin/true"], "launcher": "none", "nodes": 1}
        assert await problem(viewer, "POST", "/v1/jobs", job) == (403, "forbidden")
        version = await viewer.get("/v1/version")
        assert (version["user"], version["role"]) == ("prometheus", "viewer")


async def test_a_token_to_read_only_revokes_itself_and_no_other(tmp_path: Path) -> None:
    """Also if it is an admin's: one that leaks from a scraper does not lock its owner out."""
    with CoordinatorProcess(tmp_path).start() as process:
        add_token(process, "ann")
        async with person(process, "root", "admin") as root:
            tokens = {}
            for user in ("root", "ann"):
                asked_for = {"user": user, "label": "scraper", "role": "viewer"}
                async with root.http.post("/v1/tokens", json=asked_for) as answer:
                    tokens[user] = await answer.json()
            others = [each["id"] for each in (await root.get("/v1/tokens"))["tokens"]]
            for user, made in tokens.items():
                own, headers = made["token"]["id"], process.headers(made["text"])
                async with aiohttp.ClientSession(process.url, headers=headers) as http:
                    viewer = User(http)
                    seen = [each["id"] for each in (await viewer.get("/v1/tokens"))["tokens"]]
                    assert own in seen
                    for other in {*others, *seen} - {own}:
                        code = "read_only_token" if other in seen else "unknown_token"
                        found = await problem(viewer, "POST", f"/v1/tokens/{other}/revoke", {})
                        assert found[1] == code, (user, other)
                    assert (await asked(viewer, "POST", f"/v1/tokens/{own}/revoke", {}))[0] == 200
                others.remove(own)
            left = {each["id"] for each in (await root.get("/v1/tokens"))["tokens"]}
            assert left == set(others)


@pytest.mark.parametrize("visibility", ["team", "private"])
async def test_a_hidden_job_looks_unknown(tmp_path: Path, visibility: str) -> None:
    with CoordinatorProcess(tmp_path, visibility=visibility).start() as process:
        await register(process)
        async with (
            person(process, "ann", "user", "lab") as ann,
            person(process, "amy", "user", "lab", "web") as amy,
            person(process, "bob", "user", "web") as bob,
            person(process, "olga", "operator") as olga,
        ):
            job = await ann.submit(name="secret-name", priority=90)
            await refused_everything(bob, job, (404, "unknown_job"))
            assert await problem(bob, "GET", f"/v1/jobs/{job}/wait") == (404, "unknown_job")
            own = await bob.submit(priority=10)
            assert [each["id"] for each in (await bob.get("/v1/jobs"))["jobs"]] == [own]
            assert (await bob.get("/v1/jobs?user=ann"))["jobs"] == []
            assert (await bob.get(f"/v1/jobs/{own}/explain"))["ahead"] == []
            shared = [each["user"] for each in (await amy.get("/v1/jobs"))["jobs"]]
            assert shared == (["bob", "ann"] if visibility == "team" else [])
            code = "not_your_job" if visibility == "team" else "unknown_job"
            assert (await problem(amy, "GET", f"/v1/jobs/{job}"))[1] == code
            assert [each["id"] for each in (await olga.get("/v1/jobs"))["jobs"]] == [own, job]
            # Ended and archived jobs follow the same rule.
            assert (await asked(ann, "POST", f"/v1/jobs/{job}/cancel"))[0] == 202
            await ann.ended(job)
            assert [each["id"] for each in (await bob.get("/v1/jobs"))["jobs"]] == [own]


async def test_explain_says_nothing_of_hidden_jobs_that_went_ahead(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path, visibility="private").start() as process:
        async with (
            person(process, "ann", "user") as ann,
            person(process, "bob", "user") as bob,
            person(process, "olga", "operator") as olga,
            connect(process, "n1") as one,
            connect(process, "n2") as two,
        ):
            await one.hello()
            await two.hello()
            await bob.submit(time_limit="2h", placement={"include": ["n1"]})
            waits = [await user.submit(nodes=2, time_limit="1h") for user in (ann, bob)]
            runs = await bob.submit(time_limit="20m", placement={"include": ["n2"]})
            seen = await olga.get(f"/v1/jobs/{waits[1]}/explain")
            assert [it["id"] for it in seen["went_ahead"]] == [runs]
            seen = await olga.get(f"/v1/jobs/{runs}/explain")
            assert f"of job {waits[0]}: " in seen["attempts"][-1]["ahead_of"]
            own = await bob.get(f"/v1/jobs/{runs}/explain")
            story = own["attempts"][-1]["ahead_of"]
            assert f"of job {waits[1]}: " in story
            assert f"job {waits[0]}" not in story
            own = await ann.get(f"/v1/jobs/{waits[0]}/explain")
            assert own.get("went_ahead", []) == []


async def test_a_page_of_the_list_says_nothing_of_hidden_jobs(tmp_path: Path) -> None:
    """A cursor showed that a page had been full of jobs that were then left out."""
    with CoordinatorProcess(tmp_path, visibility="team").start() as process:
        await register(process)
        async with (
            person(process, "ann", "user", "lab") as ann,
            person(process, "bea", "user", "web") as bea,
            person(process, "bob", "user", "web") as bob,
        ):
            first = await bea.submit(name="same")
            hidden = [await ann.submit(name="same") for _ in range(3)]
            last = await bob.submit(name="same")
            for _ in range(2):
                for query in ("user=ann", "user=nobody", "name=other", "pool=other"):
                    page = await bob.get(f"/v1/jobs?limit=1&{query}")
                    assert page == {"jobs": [], "cursor": None}, query
                page = await bob.get("/v1/jobs?limit=1&name=same")
                assert [job["id"] for job in page["jobs"]] == [last]
                page = await bob.get(f"/v1/jobs?limit=1&name=same&cursor={page['cursor']}")
                assert [job["id"] for job in page["jobs"]] == [first]
                assert page["cursor"] is None
                # Once more with jobs that have ended.
                for user, job in ((bea, first), *((ann, one) for one in hidden), (bob, last)):
                    assert (await asked(user, "POST", f"/v1/jobs/{job}/cancel"))[0] == 202
                    await user.ended(job)


async def test_the_probe_of_a_node_has_the_software_of_a_job_only_for_its_readers(
    tmp_path: Path,
) -> None:
    # A coordinator of its own: the job stays on the node.
    with CoordinatorProcess(tmp_path).start() as coordinator:
        await _look_at_the_probe(coordinator)


async def _look_at_the_probe(coordinator: CoordinatorProcess) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        person(coordinator, "ann") as ann,
        person(coordinator, "bob") as bob,
        person(coordinator, "olga", "operator") as olga,
        connect(coordinator, "n1") as agent,
    ):
        await agent.hello()
        await ann.submit()
        task = (await agent.expect(PrepareTask)).task
        fabric = NodeFabric(nccl=SECRET, nccl_conf={"NCCL_NET": SECRET}, gpudirect="peermem")
        made = replace(prepared(), fingerprint=Fingerprint(torch=SECRET), fabric=fabric)
        await agent.report(task, TaskState.PREPARED, prepared=made)
        await agent.expect(ArrangeTask)
        for reader in (ann, olga):
            found = (await reader.get("/v1/nodes/n1/probe"))["fabric"]
            assert found["software"]["torch"] == found["nccl"] == SECRET
        status, text = await asked(bob, "GET", "/v1/nodes/n1/probe")
        assert (status, SECRET in text) == (200, False)
        assert json.loads(text)["fabric"]["gpudirect"] == "peermem"
        # Only olga has read what is another's.
        async with user_of(coordinator) as admin:
            reads = (await admin.get("/v1/audit?action=cluster.read"))["entries"]
        assert [(each["user"], each["subject"]) for each in reads] == [("olga", "n1")]


async def test_only_operators_see_the_processes_outside_all_jobs(tmp_path: Path) -> None:
    gpu = GpuDevice("0000:18:00.0", "GPU-1", "H100", busy=f"is used by process 7 ({SECRET})")
    with CoordinatorProcess(tmp_path).start() as process:
        async with (
            asyncio.timeout(DEADLINE_S),
            person(process, "vic", "viewer") as vic,
            person(process, "bob", "user") as bob,
            person(process, "olga", "operator") as olga,
            connect(process, "n1") as agent,
        ):
            inventory = Inventory("127.0.0.1", "machine-n1", gpus=1, devices=(gpu,))
            await agent.hello(inventory=inventory)
            own = await bob.submit()
            nodes = ("/v1/nodes", "/v1/nodes/n1", "/v1/nodes/n1/probe")
            for path in nodes:
                assert SECRET in (await asked(olga, "GET", path))[1], path
                for other in (vic, bob):
                    status, text = await asked(other, "GET", path)
                    assert (status, SECRET in text) == (200, False), path
                    assert "is in use outside all jobs" in text
            for path in ("", "/explain", "/events", "/wait?timeout_s=0"):
                status, text = await asked(bob, "GET", f"/v1/jobs/{own}{path}")
                assert (status, SECRET in text) == (200, False), path
            assert "is in use" in (await bob.get(f"/v1/jobs/{own}"))["reason"]["text"]
            assert SECRET not in (await asked(bob, "GET", "/v1/events"))[1]


async def test_priorities_above_a_limit_are_refused(tmp_path: Path) -> None:
    limits = {"roles": {"user": 50}, "teams": {"release": 80}}
    with CoordinatorProcess(tmp_path, priority_max=limits).start() as process:
        await register(process)
        async with (
            person(process, "ann", "user", "release") as ann,
            person(process, "bob") as bob,
            person(process, "olga", "operator") as olga,
        ):
            high = {"run": ["/bin/true"], "launcher": "none", "nodes": 1, "priority": 80}
            too_high = (403, "priority_too_high")
            assert await problem(bob, "POST", "/v1/jobs", high) == too_high
            job = await bob.submit(priority=50)
            change = await problem(bob, "PATCH", f"/v1/jobs/{job}", {"priority": 51})
            assert change == too_high
            rerun = await problem(bob, "POST", f"/v1/jobs/{job}/rerun", {"set": ["priority=60"]})
            assert rerun == too_high
            assert (await asked(olga, "PATCH", f"/v1/jobs/{job}", {"priority": 100}))[0] == 200
            # The owner can still rename a job whose priority an operator has raised.
            assert (await asked(bob, "PATCH", f"/v1/jobs/{job}", {"name": "x"}))[0] == 200
            assert await ann.submit(priority=80)


@pytest.mark.parametrize("kind", ["logs", "events"])
@pytest.mark.parametrize("stream", [{}, {"Accept": "text/event-stream"}], ids=["lines", "sse"])
async def test_streams_of_a_job_open_to_those_who_may_read_it(
    tmp_path: Path, kind: str, stream: dict[str, str]
) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        await register(process)
        async with person(process, "ann") as ann:
            job = await ann.submit()
            path = f"/v1/jobs/{job}/{kind}?follow=1"
            for role, status in (("viewer", 403), ("user", 403), ("operator", 200), ("admin", 200)):
                async with (
                    person(process, f"{role}2", role) as other,
                    other.http.get(path, headers=stream) as answer,
                ):
                    assert answer.status == status, role
            for role in ("viewer", "user", "operator", "admin"):
                set_user(process, "ann", role=role)
                async with ann.http.get(path, headers=stream) as answer:
                    assert answer.status == 200, role


STREAMS: dict[str, dict[str, str]] = {
    "/logs?follow=1": {},
    "/logs?follow=1&stream=stdout": {"Accept": "text/event-stream"},
    "/events?follow=1": {},
    "/events": {"Accept": "text/event-stream"},
}


class Opened:
    """Requests of a user about a job that are still open: its streams and a wait for its end."""

    def __init__(self, user: User, job: int) -> None:
        self._user = user
        self._path = f"/v1/jobs/{job}"
        self._streams: list[aiohttp.ClientResponse] = []

    async def begin(self, *streams: str) -> Self:
        for path in streams:
            stream = await self._user.http.get(self._path + path, headers=STREAMS[path])
            assert stream.status == 200, path
            self._streams.append(stream)
        begun = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            begun.set()  # the coordinator has let the request pass
            yield b""

        path = f"{self._path}/wait?timeout_s=60"
        waiting = self._user.http.get(path, data=body(), expect100=True)
        self.wait = asyncio.create_task(_answer(waiting))
        await begun.wait()
        return self

    async def cut(self) -> None:
        """All are cut, or a second try is refused."""
        for stream in self._streams:
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
        try:
            assert (await self.wait)[0] in (401, 404)
        except aiohttp.ClientError:
            pass

    async def last(self) -> Any:
        """None was cut: all end with the job. Returns the answer to the wait."""
        for stream in self._streams:
            assert '"end"' in await stream.text() or "event: end" in await stream.text()
        status, text = await self.wait
        assert status == 200
        return json.loads(text)


async def _answer(waiting: Any) -> tuple[int, str]:
    async with waiting as answer:
        return answer.status, await answer.text()


async def test_a_stream_ends_with_the_rights_behind_it(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path, visibility="team").start() as process:
        await register(process)
        async with (
            asyncio.timeout(2 * DEADLINE_S),
            person(process, "ann", "user", "lab") as ann,
            person(process, "amy", "user", "lab", "web") as amy,
            person(process, "cam", "viewer", "lab", "web") as cam,
            person(process, "dan", "operator") as dan,
            person(process, "olga", "operator") as olga,
        ):
            job = await ann.submit()
            for path, headers in STREAMS.items():  # of a teammate
                async with amy.http.get(f"/v1/jobs/{job}{path}", headers=headers) as answer:
                    assert answer.status == 403, path
            own = await Opened(ann, job).begin(*STREAMS)
            amys, cams = [await Opened(each, job).begin() for each in (amy, cam)]
            dans, olgas = [await Opened(each, job).begin(*STREAMS) for each in (dan, olga)]
            # Users who keep the right keep their open requests.
            set_user(process, "ann", role="viewer", teams=["lab", "other"])
            set_user(process, "cam", teams=["other"])
            set_user(process, "amy", teams=["web"])
            await amys.cut()
            set_user(process, "olga", role="viewer")
            await olgas.cut()
            async with user_of(process) as admin:
                assert (await asked(admin, "POST", "/v1/users/dan/disable", {}))[0] == 200
                await dans.cut()
                for path in STREAMS:
                    refused = await problem(olga, "GET", f"/v1/jobs/{job}{path}")
                    assert refused == (404, "unknown_job")
                assert (await asked(admin, "POST", f"/v1/jobs/{job}/cancel"))[0] == 202
            assert (await own.last())["reason"]["text"]
            assert (await cams.last())["reason"]["text"] == ""
        cuts = Counter(cut["why"] for cut in process.logged("stream_cut", 3 + 2 * len(STREAMS)))
    assert cuts == {
        "amy may not do this any more": 1,
        "olga may not do this any more": 1 + len(STREAMS),
        "the user dan is disabled": 1 + len(STREAMS),
    }


async def test_a_stream_of_all_events_follows_the_role(coordinator: CoordinatorProcess) -> None:
    await register(coordinator)
    async with (
        asyncio.timeout(DEADLINE_S),
        person(coordinator, "ann") as ann,
        person(coordinator, "otto", "operator") as otto,
        user_of(coordinator) as admin,
    ):
        before = await ann.submit()
        newest = (await admin.get("/v1/events?after=0&limit=1000"))["events"][-1]["seq"]
        path = f"/v1/events?follow=1&after={newest - 1}"
        async with otto.http.get(path) as stream:
            await _until(stream, f'"job":{before},')
            set_user(coordinator, "otto", role="viewer")
            after = await ann.submit()
            await asked(admin, "POST", "/v1/nodes/n1/drain", {"reason": "a bad DIMM"})
            assert f'"job":{after},' not in await _until(stream, "a bad DIMM")
            await asked(admin, "POST", "/v1/nodes/n1/resume", {"check": False})
            assert (await asked(admin, "POST", "/v1/users/otto/disable", {}))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await stream.read()


async def _until(stream: aiohttp.ClientResponse, word: str) -> str:
    """Read a stream up to the line with this word."""
    text = ""
    while word not in text:
        text += (await stream.content.readline()).decode()
    return text
