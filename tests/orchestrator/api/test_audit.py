"""The audit log: who did what to which job or node, and what came of it."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
from aiohttp.test_utils import make_mocked_request

from muster.http.audit import AuditEntry
from muster.protocol.instant import Instant
from muster.protocol.timestamp import timestamp
from orchestrator.api.audit import AuditApi
from orchestrator.shell.audit import FILE, FILES_MAX, USERS_FILE, AuditLog
from tests.orchestrator.fake_agent import DEADLINE_S, connect
from tests.orchestrator.process import CoordinatorProcess, add_token
from tests.orchestrator.user import JOB, User, user_of


def entry(number: int) -> AuditEntry:
    return AuditEntry(timestamp(float(number)), "::1", "job.submit", 201, subject=str(number))


async def entries(user: User, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await user.get(f"/v1/audit?{query}"))["entries"]
    return found


async def test_requests_of_users_are_recorded(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path).start() as process:
        ann = process.headers(add_token(process, "ann"))
        olga = process.headers(add_token(process, "olga", "operator"))
        async with user_of(process) as admin, aiohttp.ClientSession(process.url) as http:
            async with connect(process, "n1") as agent:
                await agent.hello()
            job = {"run": ["/bin/true"], "launcher": "none", "nodes": 1}
            await http.post("/v1/jobs", json=job, headers=ann)
            await http.get("/v1/jobs/1", headers=ann)
            await http.get("/v1/jobs/1/logs", headers=olga)
            await http.post("/v1/nodes/n1/drain", json={"reason": "x"}, headers=ann)
            await http.post("/v1/nodes/n1/drain", json={"reason": "x"}, headers=olga)
            for _ in range(5):
                await http.get("/v1/jobs", headers={"Authorization": "Bearer muster_user_a_b"})
            found = await entries(admin)
            said = [
                (each.get("user"), each["action"], each.get("subject"), each["status"])
                for each in reversed(found)
            ]
            assert said == [
                *([("admin-user", "people.manage", "ann", 201)] * 2),
                *([("admin-user", "people.manage", "olga", 201)] * 2),
                ("ann", "job.submit", "1", 201),
                ("olga", "job.read", "1", 200),
                ("ann", "node.operate", "n1", 403),
                ("olga", "node.operate", "n1", 200),
                (None, "login", None, 401),
                (None, "login", None, 401),
                (None, "login", None, 401),
            ]
            assert [each.get("count", 1) for each in found[:3]] == [4, 2, 1]
            assert [each["address"] for each in found] == ["127.0.0.1"] * 11
            assert [each["user"] for each in await entries(admin, "user=olga&limit=1")] == ["olga"]
            assert len(await entries(admin, "refused=true")) == 4
            assert len(await entries(admin, "action=login&subject=n1")) == 0
            assert len(await entries(admin, "since=1h")) == 11
            for headers in (ann, olga):
                async with http.get("/v1/audit", headers=headers) as answer:
                    assert answer.status == 403
        assert process.terminate() == 0
    # It outlives the process, and holds the two refusals of reading it, too.
    for name, count in ((FILE, 12), (USERS_FILE, 1)):
        path = tmp_path / "state" / name
        text = path.read_text()
        assert "muster_" not in text
        assert (path.stat().st_mode & 0o777) == 0o600
        assert len(text.splitlines()) == count


async def test_a_token_that_ended_names_its_user(tmp_path: Path) -> None:
    """Its user was disabled, or it was revoked: the attempt is theirs, and counted."""
    with CoordinatorProcess(tmp_path).start() as process:
        gone, left = add_token(process, "gone"), add_token(process, "left", "operator")
        async with user_of(process) as admin, aiohttp.ClientSession(process.url) as http:
            tried = {"gone": gone.split("_")[2], "left": left.split("_")[2]}
            await admin.http.post("/v1/users/gone/disable", json={})
            await admin.http.post(f"/v1/tokens/{tried['left']}/revoke")
            bad = [gone, left, left, left, left.removesuffix(left[-1]) + "x"]
            for token in bad:
                async with http.get("/v1/nodes", headers=process.headers(token)) as answer:
                    assert answer.status == 401
            found = [
                (each.get("user"), each.get("token"), each["route"], each.get("count", 1))
                for each in reversed(await entries(admin, "action=login"))
            ]
            assert found == [
                ("gone", tried["gone"], "/v1/nodes", 1),
                ("left", tried["left"], "/v1/nodes", 1),
                ("left", tried["left"], "/v1/nodes", 2),
                (None, None, "/v1/nodes", 1),
            ]
            assert [each["status"] for each in await entries(admin, "user=gone")] == [401]
            async with admin.http.get("/metrics") as answer:
                assert "muster_failed_logins_total 5.0" in await answer.text()
        assert process.terminate() == 0
    refused = [each.get("user") for each in process.events("request") if each["status"] == 401]
    assert refused == ["gone", "left", "left", "left", None]


async def test_no_secret_is_in_the_audit_log_or_the_log(tmp_path: Path) -> None:
    """Wherever a caller puts one: a token in a path, a query or a body, values of a job."""
    with CoordinatorProcess(tmp_path).start() as process:
        ann = add_token(process, "ann")
        secret = ann.rpartition("_")[2]
        async with user_of(process) as admin:
            job = {
                **JOB,
                "run": "train --key canary-argv",
                "env": {"WANDB_API_KEY": "canary-env"},
                "notify": ["https://hooks.test/canary-hook"],
            }
            for method, path, body in (
                ("POST", f"/v1/tokens/{ann}/revoke", {}),
                ("GET", f"/v1/jobs?user={ann}", None),
                ("GET", f"/v1/nodes/{ann}", None),
                ("POST", f"/v1/nodes/{ann}/drain", {"reason": "canary-reason"}),
                ("POST", "/v1/tokens", {"user": ann}),
                ("POST", "/v1/users", {"name": ann}),
                ("POST", f"/v1/users/{ann}/disable", {}),
                ("POST", "/v1/jobs", job),
                ("POST", "/v1/jobs", {**job, "notify": []}),
                ("POST", "/v1/jobs/1/rerun", {"set": ["env.HF_TOKEN=canary-set"]}),
                ("POST", "/v1/jobs/1/cancel", {"reason": "canary-why"}),
            ):
                async with admin.http.request(method, path, json=body) as answer:
                    await answer.read()
            found = await entries(admin)
            assert len(found) >= 9
            assert f"muster_user_{ann.split('_')[2]}_..." in {each.get("subject") for each in found}
        assert process.terminate() == 0
    for text in ((tmp_path / "state" / FILE).read_text(), json.dumps(process.log)):
        assert secret not in text
        assert process.admin.rpartition("_")[2] not in text
        assert "canary" not in text


async def test_what_an_operator_reads_of_others_is_in_the_log_too(tmp_path: Path) -> None:
    """journald keeps them when somebody changes the file."""
    with CoordinatorProcess(tmp_path).start() as process:
        ann, olga = add_token(process, "ann"), add_token(process, "olga", "operator")
        async with aiohttp.ClientSession(process.url) as http:
            async with connect(process, "n1") as agent:
                await agent.hello()
            await http.post("/v1/jobs", json=JOB, headers=process.headers(ann))
            for token in (ann, olga):
                await http.get("/v1/jobs/1/env", headers=process.headers(token))
        assert process.terminate() == 0
    reads = [each for each in process.events("request") if each["method"] == "GET"]
    assert [(each["user"], each["path"], each["status"]) for each in reads] == [
        ("olga", "/v1/jobs/1/env", 200)
    ]


async def test_tries_at_hidden_jobs_are_recorded(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path, visibility="private").start() as process:
        ann, bob = add_token(process, "ann"), add_token(process, "bob")
        async with user_of(process) as admin, aiohttp.ClientSession(process.url) as http:
            async with connect(process, "n1") as agent:
                await agent.hello()
            await http.post("/v1/jobs", json=JOB, headers=process.headers(ann))
            async with http.get("/v1/jobs/1/env", headers=process.headers(bob)) as answer:
                assert answer.status == 404
            tries = [(each["subject"], each["status"]) for each in await entries(admin, "user=bob")]
            assert tries == [("1", 404)]
        assert process.terminate() == 0


async def test_others_events_are_read_with_an_entry_for_each_request(tmp_path: Path) -> None:
    """A list of many pages, or a stream, is one. Events of nodes and one's own jobs are none."""
    with CoordinatorProcess(tmp_path).start() as process:
        ann, olga = add_token(process, "ann"), add_token(process, "olga", "operator")
        async with user_of(process) as admin, aiohttp.ClientSession(process.url) as http:
            async with connect(process, "n1") as agent:
                await agent.hello()
            await http.post("/v1/jobs", json=JOB, headers=process.headers(olga))
            async with http.get("/v1/events", headers=process.headers(olga)) as answer:
                assert {each["job"] for each in (await answer.json())["events"]} == {None, 1}
            for _ in range(3):
                await http.post("/v1/jobs", json=JOB, headers=process.headers(ann))
            for token in (ann, olga):
                async with http.get("/v1/events", headers=process.headers(token)) as answer:
                    await answer.read()
            follow = {**process.headers(olga), "Accept": "text/event-stream"}
            async with http.get("/v1/events", headers=follow) as stream:
                while b'"job":4,' not in await stream.content.readline():
                    pass
            async with asyncio.timeout(DEADLINE_S):
                while len(found := await entries(admin, "action=events.list")) < 2:
                    pass  # the stream's entry comes when the coordinator sees its end
            assert [(each["user"], each["route"]) for each in found] == [
                ("olga", "/v1/events"),
                ("olga", "/v1/events"),
            ]
        assert process.terminate() == 0


async def test_of_many_equal_refusals_of_a_user_few_are_recorded(tmp_path: Path) -> None:
    """So that no user overwrites the log. Nothing of operators is left out, and of changes only
    more than 16 of one object."""
    with CoordinatorProcess(tmp_path).start() as process:
        ann, olga = add_token(process, "ann"), add_token(process, "olga", "operator")
        async with user_of(process) as admin, aiohttp.ClientSession(process.url) as http:
            async with connect(process, "n1") as agent:
                await agent.hello()
            for token, times in ((ann, 9), (olga, 3)):
                for job in range(times):
                    path, headers = f"/v1/jobs/{1000 + job}/cancel", process.headers(token)
                    async with http.post(path, json={}, headers=headers) as answer:
                        assert answer.status == 404
            for path in ("/v1/users", "/v1/tokens"):
                async with http.post(path, json={}, headers=process.headers(ann)) as answer:
                    assert answer.status == 403
            reader = {"user": "olga", "role": "viewer"}
            async with admin.http.post("/v1/tokens", json=reader) as answer:
                lesser = (await answer.json())["text"]
            for token, status, path in (
                *[(ann, 200, "/v1/blobs:missing")] * 40,
                *[(lesser, 403, "/v1/blobs:missing")] * 5,
            ):
                sent = {"chunks": [], "bytes": 0}
                async with http.post(path, json=sent, headers=process.headers(token)) as answer:
                    assert answer.status == status, await answer.text()
            job, headers = 0, process.headers(ann)
            for _ in range(3):
                async with http.post("/v1/jobs", json=JOB, headers=headers) as answer:
                    job = (await answer.json())["id"]
            for hold in (True, False, True):
                held = http.patch(f"/v1/jobs/{job}", json={"hold": hold}, headers=headers)
                async with held as answer:
                    assert answer.status == 200
            found: dict[tuple[str, str], list[int]] = {}
            for each in reversed(await entries(admin)):
                kind = each.get("user", ""), each["action"]
                found.setdefault(kind, []).append(each.get("count", 1))
            assert found["ann", "job.change"] == [1, 2, 4, 8, 1, 1, 1]
            assert found["olga", "job.change"] == [1, 1, 1]
            assert found["ann", "people.manage"] == [1, 2]
            assert found["ann", "code.send"] == [1] * 16 + [32]
            assert found["olga", "code.send"] == [1, 2, 4]
            assert found["ann", "job.submit"] == [1, 1, 1]
        assert process.terminate() == 0


class Tries:
    """Requests without a good token, from any address, at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kept: list[AuditEntry] = []
        coordinator = Mock(now=lambda: Instant(self.now, self.now))
        self._api = AuditApi(coordinator, Mock(add=lambda entry, own: self.kept.append(entry)))

    def fail(self, addresses: int, each: int = 1) -> int:
        """Return how many entries this makes."""
        before = len(self.kept)
        for number in range(addresses * each):
            request = make_mocked_request("GET", "/v1/jobs")
            self._api.observe(request.clone(remote=f"10.0.{number // each}"), 401)
        return len(self.kept) - before


def test_failed_logins_from_many_addresses_do_not_overwrite_it() -> None:
    tries = Tries()
    assert tries.fail(3, each=4) == 9
    assert tries.fail(300) < 100
    assert tries.fail(300) < 100
    assert tries.kept[-1].count == 256
    tries.now += 61.0
    assert tries.fail(3, each=4) == 9


async def test_it_is_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, bytes_max=1)
    for number in range(30):
        log.add(entry(number))
        await log.flush()
    assert len(list(tmp_path.iterdir())) <= FILES_MAX
    newest = await log.newest(lambda _: True, 5)
    assert [each.subject for each in newest] == ["29", "28", "27", "26", "25"]


async def test_changes_by_users_do_not_overwrite_other_entries(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, bytes_max=1)
    log.add(entry(0))
    for number in range(1, 2 * FILES_MAX):
        log.add(entry(number), own=True)
        await log.flush()
    log.add(entry(99))
    newest = await log.newest(lambda _: True, 100)
    subjects = [each.subject for each in newest]
    assert subjects[:2] == ["99", str(2 * FILES_MAX - 1)]
    assert subjects[-1] == "0"
    assert len(list(tmp_path.iterdir())) <= 2 * FILES_MAX


async def test_entries_stay_in_order_though_somebody_reads(tmp_path: Path) -> None:
    overtaken = threading.Event()

    class SlowLog(AuditLog):
        def _write(self, own: bool, batch: Sequence[AuditEntry]) -> None:
            if batch[0].subject == "1":
                overtaken.wait(0.2)
            super()._write(own, batch)
            overtaken.set()

    log = SlowLog(tmp_path)
    log.add(entry(1))
    first = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    log.add(entry(2))
    assert [each.subject for each in await log.newest(lambda _: True, 5)] == ["2", "1"]
    await first


async def test_a_line_that_a_crash_cut_off_hides_no_other(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.add(entry(1))
    await log.flush()
    with (tmp_path / FILE).open("a") as file:
        file.write('{"at":"2026')
    log.add(entry(2))
    await log.flush()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"at":"2026-11-27T12:00:00Z","address":"\xff"}\n')
    assert [each.subject for each in await log.newest(lambda _: True, 5)] == ["2", "1"]


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "missing")
    log.add(entry(1))
    await log.flush()
    assert await log.newest(lambda _: True, 5) == ()
