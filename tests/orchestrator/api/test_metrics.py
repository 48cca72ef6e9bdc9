"""Metrics for Prometheus; documents and dashboard name no others."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from orchestrator.api.metrics import FAMILIES, reference
from orchestrator.shell.stats import Histogram
from tests.orchestrator.fake_agent import connect, connect_logs
from tests.orchestrator.process import CoordinatorProcess
from tests.orchestrator.user import User, user_of

TREE = Path(__file__).resolve().parents[3]
DASHBOARD = TREE / "configs" / "grafana" / "muster.json"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


async def scrape(user: User, headers: dict[str, str] | None = None) -> dict[str, Metric]:
    async with user.http.get("/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found = await answer.text()
    parse = openmetrics if headers else text_format
    # The text format has no infos: one is a gauge whose name ends so.
    return {family.name.removesuffix("_info"): family for family in parse(found)}


def value(found: dict[str, Metric], name: str, sample: str = "", **labels: str) -> float:
    (hit,) = [
        s.value
        for s in found[name].samples
        if s.name == (sample or name) and labels.items() <= s.labels.items()
    ]
    return hit


@pytest.mark.parametrize("headers", [None, OPENMETRICS], ids=["text", "openmetrics"])
def test_events_are_counted(tmp_path: Path, headers: dict[str, str] | None) -> None:
    async def main() -> None:
        async with (
            user_of(coordinator) as user,
            connect(coordinator, "n1") as agent,
        ):
            await agent.hello()
            async with connect_logs(coordinator, "n1"):
                job = await user.submit()
                task = await agent.prepare()
                await agent.arrange(task)
                await agent.finish(task)
                await user.ended(job)
                cancelled = await user.submit(priority=1)
                await user.submit()
                await user.cancel(cancelled)
                async with user.http.get("/nowhere") as answer:
                    assert answer.status == 404
                found = await scrape(user, headers)
        assert value(found, "muster_jobs", state="SUCCEEDED") == 1
        assert sum(s.value for s in found["muster_jobs"].samples) == 3
        assert value(found, "muster_nodes", pool="default", link="connected") == 1
        assert value(found, "muster_attempts_started", "muster_attempts_started_total") >= 1
        assert value(found, "muster_journal_commit_seconds", "muster_journal_commit_seconds_count")
        requests = "muster_http_requests"
        total = f"{requests}_total"
        assert value(found, requests, total, route="/v1/jobs", method="POST", status="201") == 3
        assert value(found, requests, total, route="other", status="404") == 1
        assert value(found, "muster_build", "muster_build_info") == 1
        received = "muster_websocket_received_bytes"
        assert value(found, received, f"{received}_total", channel="control") > 0
        names = {name for name in found if name.startswith("muster")}
        assert names == set(FAMILIES)

    with CoordinatorProcess(tmp_path).start() as coordinator:
        asyncio.run(main())


def test_every_family_has_a_name_that_prometheus_would_give(tmp_path: Path) -> None:
    units = ("_seconds", "_bytes")
    for family in FAMILIES.values():
        assert re.fullmatch(r"muster(_[a-z]+)*", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
        assert family.help.endswith(".")
        assert family.kind in ("counter", "gauge", "histogram", "info")
        if family.kind == "histogram":
            assert family.name.endswith(units)


def test_the_document_has_what_is_exported() -> None:
    document = (TREE / "docs/reference/metrics.md").read_text("utf-8")
    assert reference() in document, "write the table anew: orchestrator.api.metrics.reference()"
    named = set(re.findall(r"`(muster_[a-z_]+)`", document))
    assert named <= {family.exported for family in FAMILIES.values()}


def expressions(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, found in tree.items():
            if key in ("expr", "query") and isinstance(found, str):
                yield found
            else:
                yield from expressions(found)
    elif isinstance(tree, list):
        for found in tree:
            yield from expressions(found)


def test_the_dashboard_asks_for_what_is_exported() -> None:
    exported = {}
    for family in FAMILIES.values():
        exported[family.exported] = family.labels
        if family.kind == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                exported[family.name + suffix] = (*family.labels, "le")
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    asked = list(expressions(dashboard))
    assert len(asked) > 10
    used = {name for text in asked for name in re.findall(r"\bmuster_[a-z_]+", text)}
    assert used <= set(exported)
    for text in asked:
        groups = ", ".join(re.findall(r"by \(([^)]*)\)", text))
        labels = set(groups.split(", ")) - {""}
        names = re.findall(r"\bmuster_[a-z_]+", text)
        known = {label for name in names for label in exported[name]}
        assert labels <= known | {"instance"}, text
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["targets"] for panel in panels)


def test_a_histogram_has_a_bucket_for_everything() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(8.6)
