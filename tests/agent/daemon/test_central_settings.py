"""A real agent that gets settings from its coordinator, among them some that it must refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent.central_settings import SettingsInForce
from agent.config import AgentConfig
from muster.protocol.ids import SessionId
from muster.protocol.link.control_channel import Heartbeat, Hello, Welcome
from muster.protocol.observations.node_settings import GiveSettings, NodeSetting
from tests.agent.coordinator import Coordinator, Session
from tests.agent.process_of_agent import AgentProcess, write_config

FROM = "nodes.names.n1"


async def welcome(session: Session, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Welcome an agent with settings, and return those that it had before."""
    hello = await session.expect(Hello)
    settings = tuple(NodeSetting(name, json.dumps(it), FROM) for name, it in given.items())
    await session.send(Welcome(1, SessionId(1), 5.0, "0", settings=settings))
    return read(hello.observed.settings)


def read(settings: tuple[NodeSetting, ...]) -> dict[str, tuple[Any, str]]:
    return {it.name: (json.loads(it.value), it.origin) for it in settings}


async def changed(session: Session) -> dict[str, tuple[Any, str]]:
    found = await session.expect(Heartbeat, lambda it: it.changes.settings is not None)
    return read(found.changes.settings or ())


async def test_an_agent_uses_what_it_is_given_until_the_next_welcome(tmp_path: Path) -> None:
    config = write_config(tmp_path, "", unkillable_s=50)
    async with Coordinator() as coordinator:
        settings = json.loads(config.read_text())
        config.write_text(json.dumps({**settings, "coordinator": coordinator.url}))
        async with AgentProcess(config):
            session = await coordinator.session()
            given = {"hangs.period_s": 2.5, "unkillable_s": 70, "processes_max": 1000}
            before = await welcome(session, given)
            assert before["hangs.period_s"] == (5.0, "default")
            assert before["unkillable_s"] == (50.0, str(config))
            now = await changed(session)
            assert now["hangs.period_s"] == (2.5, f"coordinator's {FROM}")
            assert now["processes_max"] == (1000, f"coordinator's {FROM}")
            assert now["health_check_period_s"] == (300.0, "default")
            # The node's own file wins, and it shows.
            over = f"{config}, over 70.0 of the coordinator's {FROM}"
            assert now["unkillable_s"] == (50.0, over)

            coordinator.drop_all()
            session = await coordinator.session()
            assert await welcome(session, {}) == now
            assert await changed(session) == before


async def test_an_agent_uses_settings_that_change_while_it_is_connected(tmp_path: Path) -> None:
    async with Coordinator() as coordinator, AgentProcess(write_config(tmp_path, coordinator.url)):
        session = await coordinator.session()
        before = await welcome(session, {"hangs.period_s": 2.5})
        assert (await changed(session))["hangs.period_s"][0] == 2.5
        other = (NodeSetting("hangs.period_s", "3.5", FROM), NodeSetting("run_as", '"root"', FROM))
        await session.send(GiveSettings(other))
        now = await changed(session)
        assert now["hangs.period_s"] == (3.5, f"coordinator's {FROM}")
        assert now.keys() == before.keys()
        await session.send(GiveSettings())
        assert await changed(session) == before


async def test_what_a_coordinator_must_not_give_is_refused_and_logged(tmp_path: Path) -> None:
    bad = {
        "run_as": "root",
        "allow_root_jobs": True,
        "prolog": "/tmp/evil",
        "coordinator": "https://evil:1",
        "hangs.period_s": "2",
        "processes_max": 1,
        "\x1b[2J": 1,
    }
    async with (
        Coordinator() as coordinator,
        AgentProcess(write_config(tmp_path, coordinator.url)) as agent,
    ):
        session = await coordinator.session()
        before = await welcome(session, {**bad, "unkillable_s": 70})
        now = await changed(session)
        assert now.pop("unkillable_s") == (70.0, f"coordinator's {FROM}")
        before.pop("unkillable_s")
        assert now == before
        lines = [json.loads(line) for line in agent.log.read_text().splitlines()]
        (refused,) = [line for line in lines if line["event"] == "settings_refused"]
        assert refused["level"] == "warning"
        assert set(refused["why"]) == {*bad, " [2J"} - {"\x1b[2J"}
        assert "is not for a coordinator to give" in refused["why"]["run_as"]
        assert "expected float, got str" in refused["why"]["hangs.period_s"]


async def test_not_even_many_settings_fill_the_log(tmp_path: Path) -> None:
    async with (
        Coordinator() as coordinator,
        AgentProcess(write_config(tmp_path, coordinator.url)) as agent,
    ):
        session = await coordinator.session()
        bad = {f"{number}{'x' * 5000}": "y" * 5000 for number in range(100)}
        await welcome(session, {"unkillable_s": 70, **bad})
        await changed(session)
        (line,) = [it for it in agent.log.read_text().splitlines() if "settings_refused" in it]
        assert len(line) < 10_000


def test_a_value_that_is_nested_deeply_is_refused() -> None:
    settings = SettingsInForce(AgentConfig(coordinator="https://head:7077"), {})
    before = settings.config
    settings.use([NodeSetting("unkillable_s", "[" * 100_000, FROM)])
    assert settings.config == before
