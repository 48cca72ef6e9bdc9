"""Start, refused start and stop of an agent."""

from __future__ import annotations

import asyncio
import secrets
import socket
from pathlib import Path

import pytest

from muster.protocol.tokens import TokenClass, make
from tests.agent.coordinator import DEADLINE_S, Coordinator
from tests.agent.daemon.test_single_agent import MACHINE, config_of, manager, ready, run_folder
from tests.agent.process_of_agent import AgentProcess, joined, write_config


def start_and_fail(config: Path) -> tuple[int, str]:
    """Exit code and what was said, of an agent that cannot serve."""

    async def story() -> tuple[int, str]:
        async with AgentProcess(config) as agent:
            return await agent.ended(), agent.log.read_text()

    return asyncio.run(story())


def test_a_wrong_setting_is_one_line_and_exit_2(tmp_path: Path) -> None:
    code, text = start_and_fail(write_config(tmp_path, "http://127.0.0.1:7", gpus="many"))
    assert code == 2
    assert "gpus" in text
    assert text.count("\n") == 1


def test_a_missing_token_is_one_line_and_exit_2(tmp_path: Path) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:7", token_file=str(tmp_path / "none"))
    code, text = start_and_fail(config)
    assert code == 2
    assert f"token_file: {tmp_path / 'none'} cannot be read" in text
    assert "Traceback" not in text


def test_a_token_in_the_place_of_its_files_name_is_not_repeated(tmp_path: Path) -> None:
    token = make(TokenClass.JOIN, "abcd1234", secrets.token_hex(32))
    code, text = start_and_fail(write_config(tmp_path, "http://127.0.0.1:7", token_file=token))
    assert code == 2
    assert "token_file: is itself a token; write it to a file" in text
    assert token not in text


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 1), (0o604, 1)])
async def test_a_token_that_jobs_can_read_is_reported(
    tmp_path: Path, mode: int, warnings: int
) -> None:
    async with Coordinator() as coordinator:
        config = write_config(tmp_path, coordinator.url)
        (tmp_path / "token").chmod(mode)
        async with AgentProcess(config) as agent:
            await (await coordinator.session()).welcome()
            assert await agent.end() == 0
            said = agent.log.read_text()
            assert said.count("token_file_open") == warnings
            assert said.count(f"chmod 600 {tmp_path / 'token'}") == warnings


def test_an_unknown_user_to_run_as_is_said_at_the_start(tmp_path: Path) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:7", run_as="nobody-of-that-name")
    code, text = start_and_fail(config)
    assert code == 1
    assert "no user 'nobody-of-that-name'" in text


async def test_a_second_agent_of_one_folder_learns_whose_it_is(tmp_path: Path) -> None:
    async with Coordinator() as coordinator:
        config = write_config(tmp_path, coordinator.url)
        async with AgentProcess(config) as first:
            session = await coordinator.session()
            await session.welcome()
            async with AgentProcess(config) as second:
                assert await second.ended() == 1
                assert f"in use by process {first.pid}" in second.log.read_text()
            assert await first.end() == 0


@pytest.mark.root
async def test_a_second_agent_of_one_machine_is_refused_unless_shared(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    within = ["unshare", "--mount", "--net", "sh", "-ec", MACHINE, str(run)]
    first, second = config_of(tmp_path / "a", "n1"), config_of(tmp_path / "b", "n2")
    with manager(tmp_path) as said:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        async with AgentProcess(first, within=within, env=env) as one:
            await ready(said, one)
            for _ in range(2):  # as systemd does
                async with AgentProcess(second, within=within) as two:
                    assert await two.ended() == 1
                    text = two.log.read_text()
                    assert "shared_host" in text
                    assert f"process {one.pid} (" in text
                    assert str(first) in text
                    assert f"this one is process {two.pid}, node n2" in text
            assert await one.end() == 0


async def test_ready_is_reported_to_the_service_manager_and_then_the_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        # Nobody listens there: an agent without a coordinator is ready all the same.
        async with AgentProcess(write_config(tmp_path, "http://127.0.0.1:9")) as agent:
            said: list[str] = []
            while not any(text.startswith("READY=1") for text in said):
                said.append((await asyncio.to_thread(manager.recv, 4096)).decode())
            while said[-1] != "WATCHDOG=1":
                said.append((await asyncio.to_thread(manager.recv, 4096)).decode())
            assert await agent.end() == 0


async def test_an_agent_imports_no_torch(tmp_path: Path) -> None:
    async with joined(tmp_path) as (_, agent, _):
        maps = await asyncio.to_thread(Path(f"/proc/{agent.pid}/maps").read_text)
        assert "libtorch" not in maps


def test_ports_that_any_program_gets_are_refused_at_the_start(tmp_path: Path) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert high - low > 20
    ports = {"first": high - 10, "last": high}
    code, text = start_and_fail(write_config(tmp_path, "http://127.0.0.1:7", ports=ports))
    assert code == 1
    assert f"ports: {high - 10} to {high} lies within the kernel's own range" in text
    assert "Traceback" not in text


def test_an_interface_that_is_not_there_is_reported_at_the_start(tmp_path: Path) -> None:
    code, text = start_and_fail(write_config(tmp_path, "http://127.0.0.1:7", interface="ib77"))
    assert code == 1
    assert "interface: ib77 has no address on this node; those that have one:" in text
