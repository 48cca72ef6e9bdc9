"""The routes of the application, as its own router has them."""

import asyncio
import tempfile
from pathlib import Path

from muster.daemon.clock import SystemClock
from muster.daemon.task_owner import TaskOwner
from orchestrator.api.app import make_app
from orchestrator.api.http.cross_origin import Origins
from orchestrator.api.http.submit_policy import SubmitRules
from orchestrator.api.http.tokens import TokenStore
from orchestrator.certificate_ends import CertificateEnds
from orchestrator.config import RequestLimits as HttpLimits
from orchestrator.core.model.limits import Limits
from orchestrator.core.model.state import State
from orchestrator.core.rights.principals import Policy
from orchestrator.journal.journal import Journal
from orchestrator.journal.writer import JournalWriter
from orchestrator.shell.agent_sessions import AgentSessions
from orchestrator.shell.audit import AuditLog
from orchestrator.shell.bundles.store import BundleLimits, BundleStore
from orchestrator.shell.change_counters import ChangeCounters
from orchestrator.shell.coordinator import Coordinator
from orchestrator.shell.logs.ingest import LogIngest
from orchestrator.shell.logs.store import LogStore


def routes() -> list[tuple[str, str]]:
    """Each (method, path pattern) that is registered."""

    async def make() -> list[tuple[str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            clock, changes, owner = SystemClock(), ChangeCounters(), TaskOwner("test")
            writer = JournalWriter(Journal.open(root / "state"))
            agents = AgentSessions(owner, message_bytes_max=1, agents_max=1)
            coordinator = Coordinator(
                state=State(),
                journal=writer,
                clock=clock,
                limits=Limits(),
                sessions=agents,
                changes=changes,
            )
            store = LogStore(root / "logs", changes, clock)
            app = make_app(
                coordinator=coordinator,
                agents=agents,
                log_connections=LogIngest(owner, store, coordinator, connections_max=1),
                log_store=store,
                tokens=TokenStore(coordinator.state.people, clock),
                origins=Origins(None),
                limits=HttpLimits(),
                rules=SubmitRules(),
                policy=Policy(),
                audit_log=AuditLog(root),
                bundles=BundleStore(root / "bundles", BundleLimits(1, 1, 1, 1.0)),
                certificates=CertificateEnds({}, clock),
            )
            writer.close()
            return [(r.method, r.resource.canonical) for r in app.router.routes() if r.resource]

    return asyncio.run(make())
