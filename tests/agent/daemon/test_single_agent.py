"""The claim of a machine: a second agent is refused, and no other process can take the claim."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent import single_agent
from agent.config import AgentConfig
from agent.single_agent import SecondAgentError, single_agent_lock
from muster.daemon.errors import FileError
from tests.agent.process_of_agent import AgentProcess, write_config

# A /run that is empty or has what an earlier agent left, and a network without anybody else.
MACHINE = 'mount --bind $0 /run; ip link set lo up; exec "$@"'
# Besides, a process of user $1 that takes all it can, and ends with the agent.
SQUATTED = """
mount --bind $0 /run
ip link set lo up
mkfifo $0/squatted
setpriv --pdeathsig KILL --reuid $1 --regid $1 --clear-groups $2 -c "$SQUAT" > $0/squatted &
read ready < $0/squatted
shift 2
exec "$@"
"""
SQUAT = """
import contextlib, fcntl, os, socket, sys, time
name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
name.bind("\\0muster-agent")
name.listen()
if os.getuid():
    for folder in ("/run/muster", "/run/muster-agent"):
        with contextlib.suppress(OSError):
            os.mkdir(folder)
    for file in ("/run/agent.lock", "/run/muster/agent.lock"):
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
            with contextlib.suppress(OSError):
                fcntl.flock(os.open(file, flags), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("ready", flush=True)
sys.stdout.close()
time.sleep(1000)
"""


@contextmanager
def manager(folder: Path) -> Iterator[socket.socket]:
    """The socket to which an agent with NOTIFY_SOCKET=`folder`/notify writes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.setblocking(False)
        yield sock


async def ready(sock: socket.socket, agent: AgentProcess) -> None:
    """Wait until the agent serves; fails if it ends before."""
    ended = asyncio.ensure_future(agent.ended())
    text = b""
    while not text.startswith(b"READY=1"):
        reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(sock, 4096))
        await asyncio.wait({ended, reading}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        assert not ended.done(), agent.log.read_text()
        text = await reading


def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def config_of(folder: Path, node: str) -> Path:
    folder.mkdir()
    # Nobody listens there: an agent without a coordinator is ready all the same.
    return write_config(folder, "http://127.0.0.1:9", shared_host=False, node=node)


@pytest.mark.root
@pytest.mark.parametrize("user", [65534, 0])
async def test_no_other_process_keeps_the_agent_of_root_from_starting(
    tmp_path: Path, user: int
) -> None:
    run = run_folder(tmp_path)
    unshare = ["unshare", "--mount", "--net", "sh", "-ec"]
    config = config_of(tmp_path / "a", "n1")
    with manager(tmp_path) as said:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "SQUAT": SQUAT}
        for within in (
            [*unshare, MACHINE, str(run)],
            [*unshare, SQUATTED, str(run), str(user), sys.executable],
        ):
            async with AgentProcess(config, within=within, env=env) as agent:
                await ready(said, agent)
                assert await agent.end() == 0


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root's folder for the claim, not made yet."""
    monkeypatch.setattr(single_agent, "RUNTIME", tmp_path / "muster")
    return tmp_path / "muster"


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(node="n1", state_dir=tmp_path / "state")


def user_env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_the_claim_is_for_one_and_ends_with_it(
    runtime: Path, config: AgentConfig, tmp_path: Path
) -> None:
    env = user_env(tmp_path)
    with (
        single_agent_lock(config, env),
        pytest.raises(SecondAgentError, match=f"process {os.getpid()} \\("),
        single_agent_lock(config, env),
    ):
        pass
    with single_agent_lock(config, env):
        assert (runtime / "agent.lock").stat().st_mode & 0o777 == 0o600


def test_agents_that_share_a_machine_claim_nothing(runtime: Path, tmp_path: Path) -> None:
    config = AgentConfig(node="n1", state_dir=tmp_path / "state", shared_host=True)
    with (
        single_agent_lock(config, user_env(tmp_path)),
        single_agent_lock(config, user_env(tmp_path)),
    ):
        assert not runtime.exists()


@pytest.mark.parametrize(("what", "mode"), [("", 0o777), ("agent.lock", 0o644)])
def test_a_claim_that_another_user_could_hold_is_refused_with_the_remedy(
    runtime: Path, config: AgentConfig, tmp_path: Path, what: str, mode: int
) -> None:
    runtime.mkdir(mode=0o700)
    (runtime / "agent.lock").touch(0o600)
    (runtime / what).chmod(mode)
    remedy = f"chmod go-rwx {runtime / what}"
    with pytest.raises(FileError, match=remedy), single_agent_lock(config, user_env(tmp_path)):
        pass


@pytest.mark.root
@pytest.mark.parametrize("what", ["", "agent.lock"])
def test_a_claim_of_another_user_is_refused(
    runtime: Path, config: AgentConfig, tmp_path: Path, what: str
) -> None:
    runtime.mkdir(mode=0o700)
    (runtime / "agent.lock").touch(0o600)
    os.chown(runtime / what, 65534, 65534)
    with pytest.raises(FileError, match="belongs to user 65534"), single_agent_lock(config, {}):
        pass


@pytest.mark.parametrize("link", ["", "agent.lock"])
def test_a_link_is_not_followed(
    runtime: Path, config: AgentConfig, tmp_path: Path, link: str
) -> None:
    target = tmp_path / "target"
    if link:
        runtime.mkdir(mode=0o700)
        target.touch(0o600)
    else:
        target.mkdir(mode=0o700)
    (runtime / link).symlink_to(target)
    with (
        pytest.raises(FileError, match="cannot be opened to claim this machine"),
        single_agent_lock(config, user_env(tmp_path)),
    ):
        pass


@pytest.mark.root
def test_a_user_without_a_runtime_folder_of_its_own_has_its_state_folders_lock(
    runtime: Path, config: AgentConfig, tmp_path: Path
) -> None:
    os.seteuid(65534)
    try:
        for environ in ({}, user_env(tmp_path), {"XDG_RUNTIME_DIR": "run"}):
            with single_agent_lock(config, environ):
                pass
    finally:
        os.seteuid(0)
    assert not runtime.exists()


@pytest.mark.root
@pytest.mark.parametrize(("within", "expected"), [(["setpriv", "--no-new-privs"], 1), ([], 0)])
async def test_forked_shims_in_a_sandbox_are_reported(
    tmp_path: Path, within: list[str], expected: int
) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:9")
    with manager(tmp_path) as said:
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        async with AgentProcess(config, within=within, env=env) as agent:
            await ready(said, agent)
            assert await agent.end() == 0
            assert agent.log.read_text().count("shims_in_sandbox") == expected
