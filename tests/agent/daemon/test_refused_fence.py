"""A fence that the site demands, on a node whose kernel takes its rules no more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.shims.apart import NFT
from muster.protocol.ids import TaskId
from muster.protocol.link.control_channel import ArrangeTask, ForgetTask, Heartbeat, TaskReport
from muster.protocol.link.given import GiveUsers
from muster.protocol.states import TaskState
from tests.agent.coordinator import Coordinator, Session
from tests.agent.daemon.test_one_task import TASK, is_in, prepare
from tests.agent.process_of_agent import AgentProcess, write_config

WHERE = shutil.which(NFT, path="/usr/sbin:/usr/bin:/sbin:/bin")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's agent has a fence"),
    pytest.mark.skipif(WHERE is None, reason="another program takes the place of nft"),
]
# An agent looks for programs in folders of the system only.
WITHIN = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    f'mount --bind nft {WHERE} || exit 1; exec "$@"',
    "sh",
)
GANG, LATER = TaskId("8.1.0"), TaskId("9.1.0")
HOSTS = (("n1", "127.0.0.1"), ("n2", "127.0.0.2"))
PLAN = ArrangeTask(GANG, ("/bin/true",), {"MUSTER_NODE_RANK": "0"}, HOSTS, "n1 slots=1\n")
# The kernel answers so if it has no memory for a table, although the rules are valid.
REFUSES = """\
#!/bin/sh
[ "$1" = --check ] && exit 0
echo 'netlink: no buffer space' >&2
exit 1
"""
TAKES = "#!/bin/sh\n/bin/cat > /dev/null\n"


async def is_refused(session: Session, task: TaskId) -> None:
    """The task is refused without a fence, with the reason and what to do."""
    report = await session.expect(TaskReport, lambda it: it.task == task and it.refusal is not None)
    assert report.refusal is not None
    assert (report.refusal.code, report.refusal.node_fault) == ("not_fenced", True)
    for words in ("netlink: no buffer space", "`fence` is true", "repair nftables on this node"):
        assert words in report.refusal.text


async def test_its_tasks_are_refused_and_it_is_not_free(tmp_path: Path) -> None:
    nft = tmp_path / NFT
    nft.write_text(TAKES)
    nft.chmod(0o755)
    async with Coordinator() as coordinator:
        config = write_config(tmp_path, coordinator.url, fence=True)
        async with AgentProcess(config, within=WITHIN):
            session = await coordinator.session()
            hello = await session.welcome()
            assert hello.observed.refuses_jobs == ""
            assert "fence" not in hello.inventory.unenforced
            await session.send(prepare(GANG))
            await session.expect(TaskReport, is_in(TaskState.PREPARED))
            nft.write_text(REFUSES)
            # Before the gang's address is let in, and before a task starts.
            await session.send(PLAN)
            await is_refused(session, GANG)
            await session.send(prepare(TASK))
            await is_refused(session, TASK)
            await session.send(ForgetTask(TASK))
            # It looks twice a minute, and when it gets the names of users.
            await session.send(GiveUsers(("ann",)))
            said = await session.expect(Heartbeat, lambda it: it.changes.refuses_jobs is not None)
            assert "no buffer space, and the agent's `fence` is true" in (
                said.changes.refuses_jobs or ""
            )
            nft.write_text(TAKES)
            await session.send(prepare(LATER))
            await session.expect(
                TaskReport, lambda it: it.task == LATER and it.state is TaskState.PREPARED
            )
            await session.send(GiveUsers(("ann", "bob")))
            await session.expect(Heartbeat, lambda it: it.changes.refuses_jobs == "")
