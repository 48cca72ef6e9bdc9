"""No answer has a word of a job of others, whatever the answer is about."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from muster.protocol.link.control_channel import (
    ArrangeTask,
    Fingerprint,
    Heartbeat,
    HeartbeatAck,
    Inventory,
    NodeChanges,
    PrepareTask,
    Refusal,
    StopTask,
)
from muster.protocol.observations.fabric import NodeFabric
from muster.protocol.observations.hardware_events import OOM, Grade, HardwareEvent
from muster.protocol.states import TaskState
from orchestrator.api.routes import ROUTES
from tests.orchestrator.fake_agent import DEADLINE_S, FakeAgent, connect, prepared
from tests.orchestrator.process import CoordinatorProcess, add_token
from tests.orchestrator.user import User

WORD = "canary-5521"
NAME = "canary-name"
OWNER = "canary-ann"
END = "all-is-said"
LABEL = "canary-label"
"""The node had it before, which the events of the node say."""
FOUND = replace(
    prepared(),
    fingerprint=Fingerprint("3.11", f"2.9+{WORD}", WORD, WORD),
    fabric=NodeFabric(nccl=WORD, nccl_conf={"NCCL_NET": WORD}),
)


@asynccontextmanager
async def person(
    coordinator: CoordinatorProcess, name: str, role: str, *teams: str
) -> AsyncIterator[User]:
    headers = coordinator.headers(add_token(coordinator, name, role, teams))
    async with aiohttp.ClientSession(coordinator.url, headers=headers) as http:
        yield User(http)


async def anns(ann: User, **fields: Any) -> int:
    secret = {"workdir": f"/data/{WORD}", "env": {"WORD": WORD}}
    return await ann.submit(**{"name": NAME, "retry": {"infra": 0}, **secret, **fields})


async def unnamed(ann: User, **fields: Any) -> list[int]:
    """Jobs whose names are made of their commands."""
    git = {"git": f"https://{WORD}.example/{WORD}.git", "ref": WORD, "commit": "0" * 40}
    found = []
    for run, workdir in (
        (f"WANDB_API_KEY={WORD} python {WORD}.py --key {WORD}", git),
        ([f"{WORD}={WORD}", f"--key={WORD}"], f"/data/{WORD}"),
        ([f"/data/{WORD}/{NAME}.sh", WORD], git),
    ):
        secret: dict[str, Any] = {
            "run": run,
            "workdir": workdir,
            "env": {"WORD": WORD},
            "setup": f"echo {WORD}",
        }
        found.append(await ann.submit(**secret, **fields))
    return found


async def fails(ann: User, agent: FakeAgent) -> int:
    """A job whose failure the node is to blame for."""
    job = await anns(ann, placement={"include": [agent.name]})
    task = (await agent.expect(PrepareTask)).task
    await agent.report(task, TaskState.PREPARED, prepared=FOUND)
    await agent.expect(ArrangeTask)
    refusal = Refusal("hosts_unwritable", f"the folder /data/{WORD} is not there", True)
    await agent.report(task, TaskState.CLEANED, prepared=FOUND, refusal=refusal)
    await ann.ended(job)
    return job


async def hangs(ann: User, agent: FakeAgent) -> int:
    """A job of which one process is killed for its memory, and another survives its kill."""
    job = await anns(ann, placement={"include": [agent.name]})
    task = (await agent.expect(PrepareTask)).task
    kills = tuple(
        HardwareEvent("boot", pid, OOM, Grade.SHOWN, f"the kernel killed {WORD} ({pid})", task=of)
        for pid, of in ((1, task), (2, None))
    )
    await agent.say(Heartbeat(1.0, changes=NodeChanges(hardware=kills)))
    await agent.expect(HeartbeatAck)
    await agent.report(task, TaskState.PREPARED, prepared=FOUND, survivors=(7,))
    await agent.expect(StopTask)
    return job


def labelled(label: str) -> Inventory:
    return Inventory("127.0.0.1", "machine-n3", cpus=4, git=True, labels={"project": label})


async def answers(user: User, jobs: list[int], nodes: tuple[str, ...]) -> dict[str, str]:
    """Headers and body of every answer to a GET, and of the refused check of a node."""
    found = {}

    async def ask(method: str, path: str) -> None:
        async with user.http.request(method, path) as answer:
            found[path] = f"{answer.status} {dict(answer.headers)} {await answer.text()}"

    for route in ROUTES:
        if route.method != "GET" or route.path.startswith("/v1/agent"):
            continue
        ids: list[int] | tuple[str, ...] = nodes if "/nodes/" in route.path else jobs
        for id_ in ids if "{id}" in route.path else ids[:1]:
            wait = "?timeout_s=0" if route.path.endswith("/wait") else ""
            more = "?limit=1000" if route.path == "/v1/events" else ""
            await ask("GET", route.path.replace("{id}", str(id_)) + wait + more)
    await ask("POST", "/v1/nodes/n1/check")
    return found


async def streams(user: User, jobs: list[int]) -> dict[str, str]:
    """Headers and body of every stream. The user's own jobs have ended, and END is in an event."""
    found = {}
    for route in ROUTES:
        if not route.items or route.path.startswith("/v1/agent"):
            continue
        for id_ in jobs if "{id}" in route.path else [0]:
            path = route.path.replace("{id}", str(id_))
            async with user.http.get(path, headers={"Accept": "text/event-stream"}) as answer:
                found[path] = f"{answer.status} {dict(answer.headers)} "
                while (
                    answer.status == 200 and END not in found[path] and not answer.content.at_eof()
                ):
                    found[path] += (await answer.content.readline()).decode()
                if answer.status != 200:
                    found[path] += await answer.text()
    return found


def assert_without_a_word(read: dict[str, str], visibility: str) -> None:
    for path, text in read.items():
        assert WORD not in text, path
        assert LABEL not in text or path.startswith("/v1/events"), path
        hidden = NAME not in text and OWNER not in text
        assert visibility == "public" or hidden, path


@pytest.mark.parametrize("visibility", ["public", "team", "private"])
async def test_no_word_of_anns_jobs_is_in_an_answer_to_others(
    tmp_path: Path, visibility: str
) -> None:
    quarantine = {"jobs": 1, "pool_share": 0.4}
    process = CoordinatorProcess(tmp_path, visibility=visibility, quarantine=quarantine)
    with process.start():
        async with (
            asyncio.timeout(2 * DEADLINE_S),
            person(process, OWNER, "user", "lab") as ann,
            person(process, "bob", "user", "web") as bob,
            person(process, "vic", "viewer", "web") as vic,
            person(process, "olga", "operator") as olga,
            connect(process, "n1") as one,
            connect(process, "n2") as two,
            connect(process, "n4") as four,
        ):
            await one.hello()
            await two.hello()
            await four.hello()
            here = {"placement": {"labels": {"project": LABEL}}}
            async with connect(process, "n3") as three:
                await three.hello(inventory=labelled(LABEL))
                # The first node is quarantined and the second one spared.
                jobs = [await fails(ann, one), await fails(ann, two), await hangs(ann, four)]
                jobs.append(await anns(ann, priority=95, **here))
                task = (await three.expect(PrepareTask)).task
                await three.report(task, TaskState.PREPARED, prepared=FOUND)
                await three.expect(ArrangeTask)
                jobs.append(await anns(ann, priority=90, **here))
                head = f"/v1/jobs/{jobs[-1]}/explain"
                jobs += await unnamed(ann, priority=80, **here)
            async with connect(process, "n3") as three:
                await three.hello(inventory=labelled("web"))
                own = await bob.submit(nodes=3, priority=1)
                nodes = {node["name"]: node for node in (await olga.get("/v1/nodes"))["nodes"]}
                assert nodes["n1"]["drain"]["quarantine"]
                assert nodes["n2"]["warnings"]
                everywhere = ("n1", "n2", "n3", "n4")
                read = await answers(olga, [*jobs, own], everywhere)
                shown = {path for path, text in read.items() if WORD in text or LABEL in text}
                assert shown >= {"/v1/nodes", "/v1/nodes/n1", "/v1/nodes/n3/probe", head}
                assert WORD in read["/v1/nodes/n4"]
                assert f'"left_by":[{jobs[2]},"{OWNER}"]' in read["/v1/events?limit=1000"]
                for other in (bob, vic):
                    read = await answers(other, [*jobs, own], everywhere)
                    assert "left_by" not in read["/v1/events?limit=1000"]
                    assert_without_a_word(read, visibility)
                mine = await bob.get(f"/v1/jobs/{own}")
                assert "another user's job" in mine["reason"]["text"]
                await bob.cancel(own)
                async with olga.http.post("/v1/nodes/n2/drain", json={"reason": END}) as answer:
                    assert answer.status == 200
                everything = await streams(olga, [own])
                assert WORD in everything["/v1/events"]
                for other in (bob, vic):
                    read = await streams(other, [*jobs, own])
                    assert END in read["/v1/events"]
                    assert len(read) == 1 + 2 * (len(jobs) + 1)
                    assert_without_a_word(read, visibility)
