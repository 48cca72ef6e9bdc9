"""Code that travels with jobs: who may send, refer to and fetch what."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from muster.bundle.manifest import MANIFEST_BYTES_MAX, CodeManifest, File, digest, encode
from muster.bundle.pack import pack, unpack
from muster.protocol.link.control_channel import PrepareTask
from muster.protocol.states import TaskState
from tests.orchestrator.api import raw
from tests.orchestrator.api.test_rights import person
from tests.orchestrator.fake_agent import connect, prepared
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import JOB, User
from tests.small_disk import small_disk

BYTES = {"Content-Type": "application/octet-stream"}
TEXT = b"print('the secret of ann')"
CHUNK = digest(TEXT)
MANIFEST = encode(CodeManifest((File("train.py", len(TEXT), False, (CHUNK,)),)))
BUNDLE = digest(MANIFEST)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """A coordinator with an empty store for each test."""
    with CoordinatorProcess(tmp_path, heartbeat_s=20, lease_s=60).start() as process:
        yield process


async def ask(user: User, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Status and answer."""
    async with user.http.request(method, path, **more) as answer:
        return answer.status, json.loads(await answer.read())


async def send(user: User) -> None:
    """Send the code, as `muster submit` does."""
    status, found = await ask(user, "POST", "/v1/blobs:missing", json={"chunks": [CHUNK]})
    assert (status, found) == (200, {"missing": [CHUNK]})
    data = pack([(CHUNK, TEXT)])
    assert (await ask(user, "POST", "/v1/blobs", data=data, headers=BYTES))[0] == 201
    path = f"/v1/bundles/{BUNDLE}"
    status, found = await ask(user, "PUT", path, data=MANIFEST, headers=BYTES)
    assert (status, found) == (201, {"sha256": BUNDLE, "files": 1, "bytes": len(TEXT)})


async def test_a_user_refers_only_to_what_this_user_has_sent(
    coordinator: CoordinatorProcess,
) -> None:
    async with connect(coordinator, "n1") as agent:
        await agent.hello()
    job = {**JOB, "workdir": {"bundle": BUNDLE}}
    async with (
        person(coordinator, "ann") as ann,
        person(coordinator, "bob") as bob,
        person(coordinator, "olga", "operator") as olga,
        person(coordinator, "root", "admin") as root,
    ):
        status, refused = await ask(ann, "POST", "/v1/jobs", json=job)
        assert (status, refused["code"]) == (422, "unknown_bundle")
        await send(ann)
        number = await ann.submit(workdir={"bundle": BUNDLE})
        for other in (bob, olga, root):
            # Nobody learns that there is such content, nor obtains it by its hash.
            found = await ask(other, "POST", "/v1/blobs:missing", json={"chunks": [CHUNK]})
            assert found == (200, {"missing": [CHUNK]})
            assert (await ask(other, "GET", f"/v1/bundles/{BUNDLE}"))[0] == 404
            status, refused = await ask(
                other, "PUT", f"/v1/bundles/{BUNDLE}", data=MANIFEST, headers=BYTES
            )
            assert (status, refused["code"]) == (409, "content_missing")
            status, refused = await ask(other, "POST", "/v1/jobs", json=job)
            assert (status, refused["code"]) == (422, "unknown_bundle")
        # An admin may submit another's job again, with its code and with nothing else of it.
        status, again = await ask(root, "POST", f"/v1/jobs/{number}/rerun", json={})
        assert status == 201, again
        await send(bob)
        assert await bob.submit(workdir={"bundle": BUNDLE})


async def test_bad_content_is_refused_and_nothing_is_kept(coordinator: CoordinatorProcess) -> None:
    other = digest(b"other")
    escaping = encode(CodeManifest((File("../x", len(TEXT), False, (CHUNK,)),)))
    async with person(coordinator, "ann") as ann:
        for data in (pack([(other, TEXT)]), pack([(CHUNK, TEXT)])[:-1], b"x", b"\xff" * 100):
            status, refused = await ask(ann, "POST", "/v1/blobs", data=data, headers=BYTES)
            assert (status, refused["code"]) == (422, "bad_content"), data
        _, found = await ask(ann, "POST", "/v1/blobs:missing", json={"chunks": [CHUNK, other]})
        assert found == {"missing": [CHUNK, other]}
        await send(ann)
        for name, data in ((BUNDLE, MANIFEST + b" "), (digest(escaping), escaping)):
            path = f"/v1/bundles/{name}"
            status, refused = await ask(ann, "PUT", path, data=data, headers=BYTES)
            assert (status, refused["code"]) == (422, "bad_content")
        assert (await ask(ann, "PUT", f"/v1/bundles/{'x' * 64}", data=b"", headers=BYTES))[0] == 404
        assert (await ask(ann, "POST", "/v1/blobs", json={}))[0] == 415
        status, refused = await ask(ann, "POST", "/v1/blobs:missing", json={"chunks": ["../../x"]})
        assert status == 422
        status, refused = await ask(ann, "POST", "/v1/blobs:missing", json={"bytes": 1 << 60})
        assert (status, refused["code"]) == (413, "too_much_code")
        status, refused = await ask(ann, "POST", "/v1/jobs", json={**JOB, "workdir": "."})
        assert (status, refused["problems"][0]["field"]) == (422, "workdir")
    stored = [path.name for path in (coordinator.state_dir / "bundles/chunks").glob("??/*")]
    assert stored == [CHUNK]
    assert list((coordinator.state_dir / "bundles/incoming").iterdir()) == []


async def test_a_node_fetches_the_code_of_its_own_task_and_of_no_other(
    coordinator: CoordinatorProcess,
) -> None:
    headers = coordinator.headers(coordinator.join)
    async with (
        connect(coordinator, "n1") as agent,
        person(coordinator, "ann") as ann,
        aiohttp.ClientSession(coordinator.url, headers=headers) as http,
    ):
        await agent.hello()
        await send(ann)
        await ann.submit(workdir={"bundle": BUNDLE})
        order = await agent.expect(PrepareTask)
        assert (order.bundle, order.workdir) == (BUNDLE, None)
        node = User(http)
        good = {"X-Muster-Ticket": order.ticket}
        path = f"/v1/agent/tasks/{order.task}"
        async with http.get(f"{path}/bundle", headers=good) as answer:
            assert (answer.status, await answer.read()) == (200, MANIFEST)
        async with http.post(f"{path}/blobs", json={"chunks": [CHUNK]}, headers=good) as answer:
            found = {name: bytes(data) for name, data in unpack(await answer.read())}
            assert found == {CHUNK: TEXT}
        for wrong in ({}, {"X-Muster-Ticket": "0" * 64}, {"X-Muster-Ticket": "é"}):
            assert (await ask(node, "GET", f"{path}/bundle", headers=wrong))[0] == 404
        for other in ("1.2.0", "1.1.1", "2.1.0", "x", "1.1.0/../2.1.0"):
            status, _ = await ask(node, "GET", f"/v1/agent/tasks/{other}/bundle", headers=good)
            assert status == 404, other
        status, refused = await ask(
            node, "POST", f"{path}/blobs", json={"chunks": [digest(b"x")]}, headers=good
        )
        assert (status, refused["code"]) == (422, "not_in_bundle")
        # A flipped bit on the coordinator's disk never leaves it.
        stored = coordinator.state_dir / "bundles/chunks" / CHUNK[:2] / CHUNK
        stored.write_bytes(TEXT[:-1] + b"x")
        wanted = {"json": {"chunks": [CHUNK]}, "headers": good}
        status, refused = await ask(node, "POST", f"{path}/blobs", **wanted)
        assert (status, refused["code"]) == (410, "content_lost")
        # The node repeats this as the reason of the job's end.
        assert "`muster rerun 1 --ship`" in refused["detail"]
        await send(ann)
        async with http.post(f"{path}/blobs", json={"chunks": [CHUNK]}, headers=good) as answer:
            assert answer.status == 200
        # Once the task is over, the ticket is worth nothing.
        await agent.report(order.task, TaskState.PREPARED, prepared=prepared())
        await agent.arrange(order.task)
        await agent.finish(order.task)
        status, _ = await ask(node, "GET", f"{path}/bundle", headers=good)
        assert status in (404, 409)


async def test_nodes_of_a_gang_hear_of_each_other_and_of_no_other(
    coordinator: CoordinatorProcess,
) -> None:
    headers = coordinator.headers(coordinator.join)
    async with (
        connect(coordinator, "n1") as first,
        connect(coordinator, "n2") as second,
        person(coordinator, "ann") as ann,
        aiohttp.ClientSession(coordinator.url, headers=headers) as http,
    ):
        await first.hello()
        await second.hello()
        await send(ann)
        await ann.submit(workdir={"bundle": BUNDLE}, nodes=2)
        orders = sorted(
            [await first.expect(PrepareTask), await second.expect(PrepareTask)],
            key=lambda order: order.task,
        )
        node, answers = User(http), []
        for rank, order in enumerate(orders):
            status, answer = await ask(
                node,
                "POST",
                f"/v1/agent/tasks/{order.task}/peers",
                json={"port": 7000 + rank},
                headers={"X-Muster-Ticket": order.ticket},
            )
            assert (status, answer["rank"], answer["nodes"]) == (200, rank, 2)
            answers.append(answer)
        assert [peer["port"] for peer in answers[1]["peers"]] == [7000, 7001]
        assert answers[0]["key"] == answers[1]["key"]
        status, _ = await ask(
            node,
            "POST",
            f"/v1/agent/tasks/{orders[0].task}/peers",
            json={"port": 7000},
            headers={"X-Muster-Ticket": orders[1].ticket},
        )
        assert status == 404


@pytest.mark.root
async def test_a_full_disk_is_said_and_code_is_stored_once_there_is_room(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 64 << 20) as disk,
        CoordinatorProcess(disk, bundles={"free_bytes_min": 32 << 20}).start() as process,
    ):
        filler = disk / "filler"
        filler.write_bytes(bytes(40 << 20))
        async with person(process, "ann") as ann:
            data = pack([(CHUNK, TEXT)])
            status, refused = await ask(ann, "POST", "/v1/blobs", data=data, headers=BYTES)
            assert (status, refused["code"]) == (507, "disk_full")
            assert "too little room" in refused["detail"]
            assert "operator" in refused["hint"]
            filler.unlink()
            await send(ann)


async def test_a_job_whose_code_is_lost_says_what_to_do(coordinator: CoordinatorProcess) -> None:
    """After a restore on another machine, for example."""
    headers = coordinator.headers(coordinator.join)
    async with (
        connect(coordinator, "n1") as agent,
        person(coordinator, "ann") as ann,
        aiohttp.ClientSession(coordinator.url, headers=headers) as http,
    ):
        await agent.hello()
        await send(ann)
        await ann.submit(workdir={"bundle": BUNDLE})
        order = await agent.expect(PrepareTask)
        (coordinator.state_dir / "bundles/manifests" / BUNDLE).unlink()
        good = {"X-Muster-Ticket": order.ticket}
        path = f"/v1/agent/tasks/{order.task}/bundle"
        status, refused = await ask(User(http), "GET", path, headers=good)
        assert (status, refused["code"]) == (410, "content_lost")
        assert "lost the code of job 1: `muster rerun 1 --ship`" in refused["detail"]
        # Nor is it there for a rerun, which says what sends it.
        status, refused = await ask(ann, "POST", "/v1/jobs/1/rerun", json={})
        assert (status, refused["code"]) == (422, "unknown_bundle")
        assert "no longer has the code of job 1" in refused["detail"]
        assert "`muster rerun 1 --ship`" in refused["hint"]
        # The same code, sent again with any job, is that of the waiting ones, too.
        sent = await ask(ann, "PUT", f"/v1/bundles/{BUNDLE}", data=MANIFEST, headers=BYTES)
        assert sent[0] == 201
        async with http.get(path, headers=good) as answer:
            assert (answer.status, await answer.read()) == (200, MANIFEST)


def test_a_manifest_that_is_too_large_is_refused_unread(coordinator: CoordinatorProcess) -> None:
    """By its length, before any of it is sent."""
    line = f"PUT /v1/bundles/{BUNDLE} HTTP/1.1"
    length = f"Content-Length: {MANIFEST_BYTES_MAX + 1}"
    kind = f"Content-Type: {BYTES['Content-Type']}"
    answer = raw.ask(coordinator, raw.head(coordinator, line, length, kind))
    assert (answer.status, answer.problem["code"]) == (413, "body_too_large")
