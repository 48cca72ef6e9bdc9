"""`muster up --approve`: each new node waits for an operator, with any secret."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from examples.local_cluster import MUSTER
from muster.client import enrolment
from muster.http.enrolment import JoinSecretRequest
from tests.cluster.enrolment import Site, running
from tests.cluster.jobs import until
from tests.cluster.test_wrong_clock import restart


def said(text: str) -> str:
    return " ".join(text.split())


def doctor(site: Site, node: str) -> str:
    """Return what doctor says of a node. Its exit code depends on the machine."""
    words = [MUSTER, "doctor", "--config", str(site.root / node / "agent.yaml")]
    done = subprocess.run(
        words, env=site.env, capture_output=True, text=True, timeout=120, check=False
    )
    return said(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("approval"), "--approve") as made:
        yield made


def test_a_new_node_waits_until_an_operator_accepts_it(site: Site) -> None:
    """The whole way: `up --approve`, a secret, a join, `node accept`, the pool."""
    assert "it waits for an operator: muster node accept gpu-01" in said(
        site.join("gpu-01", site.secret()).stdout
    )
    assert "gpu-01" in site.muster("token", "list", "--join").stderr
    assert site.post("/v1/jobs", {}, "gpu-01")[0] == 401
    refused = f"https://127.0.0.1:{site.agents_port} refuses this node: "
    assert refused in doctor(site, "gpu-01")
    site.agent("gpu-01")
    site.muster("node", "accept", "gpu-01")
    until(lambda: site.links().get("gpu-01") == "connected", "the node is in the pool")
    assert refused not in doctor(site, "gpu-01")
    site.muster("node", "revoke", "gpu-01")
    assert refused in doctor(site, "gpu-01")


def test_a_secret_that_was_made_before_lets_nobody_in_unseen(site: Site) -> None:
    config = site.root / "etc" / "coordinator.yaml"
    with_approval = config.read_text()
    tree = yaml.safe_load(with_approval)
    tree["join"]["approve"] = False
    config.write_text(yaml.safe_dump(tree))
    right = dict(site.daemons[0].env)
    restart(site, right)
    earlier = site.secret("--uses", "2")
    assert "it waits" not in site.join("gpu-02", earlier).stdout
    config.write_text(with_approval)
    restart(site, right)
    assert "it waits for an operator" in site.join("gpu-03", earlier).stdout
    # The machine that was in before repeats its line.
    assert "it waits" not in site.join("gpu-02", earlier).stdout


def test_a_secret_is_for_one_node_and_one_hour_if_nothing_else_is_asked(site: Site) -> None:
    before = datetime.now(UTC)
    made = site.client().call(enrolment.create_join_secret(JoinSecretRequest())).secret
    assert (made.uses, made.names, made.pool) == (1, "*", "")
    assert before <= made.expires - timedelta(hours=1) <= datetime.now(UTC)
    words = ("--uses", "3", "--names", "cpu-*", "--pool", "lab", "--expires", "8h")
    before = datetime.now(UTC)
    name = site.secret(*words).rpartition(".")[2].partition("-")[0]
    known = {each.id: each for each in site.client().call(enrolment.enrolment()).secrets}
    assert (known[name].uses, known[name].names, known[name].pool) == (3, "cpu-*", "lab")
    assert before <= known[name].expires - timedelta(hours=8) <= datetime.now(UTC)


def test_labels_of_the_line_are_the_nodes_and_others_stay(site: Site) -> None:
    target, config = f"127.0.0.1:{site.port}", site.root / "cpu-01" / "agent.yaml"
    where = ("join", target, "--node", "cpu-01", "--dir", "cpu-01", "--no-start")
    given = ("--run-as", "SUBMITTER", "--label", "rack=a1", "--label", "kind=a=b")
    secret = site.secret()
    site.muster(*where, *given, stdin=f"{secret}\n")
    assert yaml.safe_load(config.read_text())["labels"] == {"rack": "a1", "kind": "a=b"}
    before = config.read_bytes()
    done = site.muster(*where, "--run-as", "SUBMITTER", stdin=f"{secret}\n").stdout
    again = f"cpu-01 joined {target} again, with a new certificate; {config} is unchanged"
    assert again in done.splitlines()
    assert config.read_bytes() == before
    site.muster(*where, "--run-as", "SUBMITTER", "--label", "rack=a2", stdin=f"{secret}\n")
    assert yaml.safe_load(config.read_text())["labels"] == {"rack": "a2", "kind": "a=b"}
    refused = site.muster(*where, "--label", "rack", stdin=f"{secret}\n", code=2)
    assert "is not NAME=VALUE" in refused.stderr


def test_a_join_prints_what_is_wrong_and_how_many_notes_doctor_has(site: Site) -> None:
    done = site.join("cpu-02", site.secret()).stdout
    assert "note: " not in done
    notes = doctor(site, "cpu-02").count("note: ")
    assert notes > 0
    assert f"{notes} note{'s' if notes > 1 else ''} about what this node has" in done


def test_the_pool_of_the_secret_goes_before_the_option(site: Site) -> None:
    target = f"127.0.0.1:{site.port}"
    words = ("--node", "cpu-03", "--dir", "cpu-03", "--no-start", "--run-as", "SUBMITTER")
    secret = site.secret("--pool", "lab")
    done = site.muster("join", target, *words, "--pool", "other", stdin=f"{secret}\n")
    assert "its pool is lab, that of the secret, and not other" in done.stdout
    assert yaml.safe_load((site.root / "cpu-03/agent.yaml").read_text())["pool"] == "lab"


def test_a_node_in_another_pool_than_its_secret_s_is_refused_and_says_why(site: Site) -> None:
    site.join("cpu-04", site.secret("--pool", "lab"))
    site.muster("node", "accept", "cpu-04")
    config = site.root / "cpu-04" / "agent.yaml"
    right = config.read_text()
    wrong = right.replace("lab", "other")
    assert yaml.safe_load(wrong)["pool"] == "other"
    why = "cpu-04 joined with a secret for pool lab, and its agent says pool other: set `pool: lab`"

    def shown(*words: str) -> str:
        return said(site.muster(*words).stdout)

    config.write_text(wrong)
    agent = site.agent("cpu-04")
    until(lambda: why in shown("node", "show", "cpu-04"), "a new node says why it is refused")
    assert f"refuses this node: {why}" in doctor(site, "cpu-04")
    agent.stop()
    config.write_text(right)
    agent.start()
    until(lambda: site.links().get("cpu-04") == "connected", "the node is in the pool")
    assert site.client().node("cpu-04").pool == "lab"
    assert why not in shown("nodes")
    agent.stop()
    config.write_text(wrong)
    agent.start()
    refused = f"its agent is refused: {why}"
    until(lambda: refused in shown("node", "show", "cpu-04"), "a known node says so, too")
    assert refused in shown("nodes")
    assert f"refuses this node: {why}" in doctor(site, "cpu-04")
    agent.stop()
    config.write_text(right)
    agent.start()
    until(lambda: site.links()["cpu-04"] == "connected", "the node is back")
    assert why not in shown("node", "show", "cpu-04")
    assert "refuses this node" not in doctor(site, "cpu-04")
