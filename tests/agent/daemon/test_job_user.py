"""The user that jobs run as: a node where every job would be refused says why."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import SUBMITTER, AgentConfig
from agent.core.inputs import Input, NodeObserved
from agent.monitors.job_user import JobUserMonitor, check
from agent.shims.apart import NFT
from agent.taskdirs.task_accounts import TaskAccounts
from muster.protocol.link.control_channel import NodeChanges
from tests.agent.process_of_agent import joined

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """pytest's own folders let nobody else pass."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.parametrize(
    ("run_as", "who"), [("nobody", "user nobody"), (SUBMITTER, "users")], ids=["one", "each"]
)
async def test_a_closed_folder_above_is_named_until_it_is_open(
    folder: Path, run_as: str, who: str
) -> None:
    tasks = folder / "closed/state/tasks"
    tasks.mkdir(parents=True)
    posted: list[Input] = []
    config = AgentConfig(run_as=run_as, state_dir=tasks.parent)
    monitor = JobUserMonitor(TaskAccounts(config), config, posted.append)
    await monitor.look()
    assert posted == [], "a node that takes jobs has nothing to report"
    (folder / "closed").chmod(0o700)
    await monitor.look()
    await monitor.look()
    (folder / "closed").chmod(0o711)
    await monitor.look()
    refused, taken = posted
    assert taken == NodeObserved(NodeChanges(refuses_jobs=""))
    assert isinstance(refused, NodeObserved)
    assert f"{who}, whom jobs run as, cannot enter {tasks}" in (refused.changes.refuses_jobs or "")


@pytest.mark.parametrize("demanded", [True, None])
async def test_a_node_that_lacks_the_fence_that_the_site_demands_is_not_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, demanded: bool | None
) -> None:
    (folder / "tasks").mkdir()
    nft = folder / NFT
    nft.write_text("#!/bin/sh\necho 'netlink: no buffer space' >&2; exit 1\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    posted: list[Input] = []
    config = AgentConfig(state_dir=folder, fence=demanded)
    monitor = JobUserMonitor(TaskAccounts(config), config, posted.append)
    await monitor.look()
    nft.write_text("#!/bin/sh\n")
    await monitor.look()
    said = [it.changes.refuses_jobs for it in posted if isinstance(it, NodeObserved)]
    if not demanded:
        assert said == []
        return
    refused, taken = said
    assert "netlink: no buffer space, and the agent's `fence` is true" in (refused or "")
    assert taken == ""


async def test_a_node_without_an_account_of_any_user_says_so_until_there_is_one(
    folder: Path,
) -> None:
    posted: list[Input] = []
    (folder / "tasks").mkdir()
    config = AgentConfig(state_dir=folder, run_as=SUBMITTER, user_map={"ann@lab": "nobody"})
    monitor = JobUserMonitor(TaskAccounts(config), config, posted.append)
    strangers = ("ann@lab.example", "no-such-user", "root")
    await monitor.look()
    monitor.use(strangers)
    await monitor.look()
    for users in (None, strangers, (*strangers, "ann@lab"), strangers, (*strangers, "nobody"), ()):
        monitor.use(users)
        await monitor.look()
    found = [it.changes.refuses_jobs for it in posted if isinstance(it, NodeObserved)]
    assert found[1::2] == ["", "", ""]
    assert found[0::2] == [found[0]] * 3
    assert "no user of the cluster (ann@lab.example, no-such-user, root) has" in (found[0] or "")
    # One user for all jobs: nobody else matters.
    assert check(TaskAccounts(AgentConfig(run_as="nobody")), folder, strangers) == ""


def test_jobs_of_roots_agent_run_as_their_submitters_by_default(folder: Path) -> None:
    accounts = TaskAccounts(AgentConfig())
    assert accounts.submitters
    assert check(accounts, folder) == ""
    assert AgentConfig().has_private_tmp
    assert AgentConfig().hides_processes
    roots = AgentConfig(allow_root_jobs=True)
    assert not TaskAccounts(roots).submitters
    assert not roots.has_private_tmp


async def test_the_hello_says_so(tmp_path: Path) -> None:
    """No job is placed before the coordinator knows."""
    async with joined(tmp_path, allow_root_jobs=False) as (_, agent, session):
        assert "cannot enter" in session.hello.observed.refuses_jobs
        assert "jobs_will_be_refused" in agent.log.read_text()
