"""The user that jobs run as: a node where every job would be refused says why."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.config import SUBMITTER, AgentConfig
from agent.core.inputs import Input, NodeObserved
from agent.monitors.job_user import JobUserMonitor, check
from agent.shims.apart import FENCE, NFT
from agent.taskdirs.task_accounts import TaskAccounts
from muster.protocol.link.control_channel import Inventory, NodeChanges
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


def watching(
    config: AgentConfig,
    posted: list[Input],
    unfenced: Callable[[], str] = str,
    unenforced: dict[str, str] | None = None,
) -> JobUserMonitor:
    inventory = Inventory("127.0.0.1", "m", unenforced=unenforced or {})
    return JobUserMonitor(TaskAccounts(config), config, posted.append, unfenced, inventory)


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
    monitor = watching(config, posted)
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
async def test_a_node_that_lacks_a_fence_says_so_and_is_not_free_if_the_site_demands_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, demanded: bool | None
) -> None:
    (folder / "tasks").mkdir()
    nft = folder / NFT
    nft.touch(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    posted: list[Input] = []
    written = [""]
    config = AgentConfig(state_dir=folder, fence=demanded)
    limits = {"memory": "the memory controller is missing"}
    monitor = watching(config, posted, written.pop, limits)
    # The kernel refuses all rules; takes them; has refused those that were to be written last.
    for problem, works in (("", False), ("", True), ("the table is too large", True), ("", True)):
        written.append(problem)
        nft.write_text("#!/bin/sh\n" if works else "#!/bin/sh\necho 'no space' >&2; exit 1\n")
        await monitor.look()
    changes = [it.changes for it in posted if isinstance(it, NodeObserved)]
    assert [it.unenforced for it in changes if it.unenforced is not None] == [
        {**limits, FENCE: "no space"},
        limits,
        {**limits, FENCE: "the table is too large"},
        limits,
    ]
    said = [it.refuses_jobs for it in changes if it.refuses_jobs is not None]
    if not demanded:
        assert said == []
        return
    assert said[1::2] == ["", ""]
    for reason, why in zip(said[::2], ("no space", "the table is too large"), strict=True):
        assert reason.startswith(f"{why}, and the agent's `fence` is true: repair nftables")


async def test_a_fence_that_has_been_repaired_since_the_start_is_no_longer_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tasks").mkdir()
    nft = folder / NFT
    nft.write_text("#!/bin/sh\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    posted: list[Input] = []
    config = AgentConfig(state_dir=folder, fence=None)
    await watching(config, posted, unenforced={FENCE: "there is no nft"}).look()
    assert posted == [NodeObserved(NodeChanges(unenforced={}))]


async def test_a_node_without_an_account_of_any_user_says_so_until_there_is_one(
    folder: Path,
) -> None:
    posted: list[Input] = []
    (folder / "tasks").mkdir()
    config = AgentConfig(state_dir=folder, run_as=SUBMITTER, user_map={"ann@lab": "nobody"})
    monitor = watching(config, posted)
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
    # With one account for all jobs, other users do not matter.
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
