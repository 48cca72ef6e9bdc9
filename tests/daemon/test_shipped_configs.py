"""The shipped configuration files: they load as they are, and hold every setting there is."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agent.config
import orchestrator.config
from agent.config import AgentConfig
from muster.daemon.config_loader import read_yaml, settings
from muster.daemon.errors import ConfigError, InsecureConfigError
from muster.spec.parse import parse_document
from muster.spec.pool_defaults import fill_in
from muster.spec.yaml import loader
from orchestrator.config import CoordinatorConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
COORDINATOR, AGENT = CONFIGS / "coordinator.yaml", CONFIGS / "agent.yaml"


def test_as_shipped_they_are_the_defaults() -> None:
    assert orchestrator.config.load(file=COORDINATOR, environ={}) == CoordinatorConfig()
    assert agent.config.load(file=AGENT, environ={}) == AgentConfig()


@pytest.mark.parametrize(
    ("file", "kind"),
    [(COORDINATOR, CoordinatorConfig), (AGENT, AgentConfig)],
    ids=["coordinator", "agent"],
)
def test_with_every_line_switched_on_each_setting_appears(
    file: Path, kind: type[msgspec.Struct], tmp_path: Path
) -> None:
    everything = tmp_path / file.name
    everything.write_text(re.sub(r"(?m)^#(?=\S|  )", "", file.read_text("utf-8")), encoding="utf-8")
    written = set(leaves(read_yaml(everything, kind)))
    assert written == {setting.path for setting in settings(kind, "X")}
    module = orchestrator.config if kind is CoordinatorConfig else agent.config
    module.load(file=everything, environ={})


def leaves(tree: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found += leaves(value, f"{above}{name}.")
        else:
            found.append(above + name)
    return found


@pytest.mark.parametrize("kind", [CoordinatorConfig, AgentConfig])
def test_no_two_settings_share_a_variable(kind: type[msgspec.Struct]) -> None:
    variables = [setting.variable for setting in settings(kind, "X")]
    assert len(set(variables)) == len(variables)
    assert "X_CONFIG" not in variables


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_tls(host: str) -> None:
    config = orchestrator.config.load(file=None, environ={}, flags={"listen.host": host})
    assert config.listen.host == host


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "gpu-01", "localhost.evil"]
)
def test_a_network_address_without_tls_is_refused(host: str) -> None:
    with pytest.raises(InsecureConfigError, match=r"set tls\.cert and tls\.key, or listen on"):
        orchestrator.config.load(file=None, environ={}, flags={"listen.host": host})


def test_a_network_address_with_tls_is_accepted(tmp_path: Path) -> None:
    flags = {"listen.host": "0.0.0.0", "tls.cert": "/c", "tls.key": "/k"}
    config = orchestrator.config.load(file=None, environ={}, flags=flags)
    assert config.tls is not None
    assert config.tls.key == Path("/k")


def test_half_a_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tls\.key: is not set"):
        orchestrator.config.load(file=None, environ={}, flags={"tls.cert": "/c"})


def test_there_is_always_a_tokens_file() -> None:
    config = orchestrator.config.load(file=None, environ={}, flags={"state_dir": "/s"})
    assert config.tokens_path == Path("/s/tokens")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"listen.port": 65536}, r"listen\.port"),
        ({"listen.port": -1}, r"listen\.port"),
        ({"listen.host": ""}, r"listen\.host"),
        ({"listen.host": "http://x"}, r"listen\.host: expected an address or a host name"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": 10}, "at least three times heartbeat_s"),
        ({"limits.agents_max": 0}, r"limits\.agents_max"),
        ({"log.level": "loud"}, r"log\.level"),
    ],
)
def test_a_coordinator_that_cannot_work_is_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        orchestrator.config.load(file=None, environ={}, flags=flags)


def test_port_zero_lets_the_kernel_choose() -> None:
    config = orchestrator.config.load(file=None, environ={}, flags={"listen.port": 0})
    assert config.listen.port == 0


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7077", "http://localhost", "https://c:7077", "https://c/"]
)
def test_a_coordinator_s_url_that_is_safe_is_accepted(url: str) -> None:
    assert agent.config.load(file=None, environ={}, flags={"coordinator": url}).coordinator == url


def test_a_token_in_the_clear_is_refused() -> None:
    with pytest.raises(InsecureConfigError, match="use https://"):
        agent.config.load(file=None, environ={}, flags={"coordinator": "http://gpu-00:7077"})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"coordinator": "gpu-00:7077"}, "not of the form"),
        ({"coordinator": "https://gpu-00:port"}, "not of the form"),
        ({"coordinator": "https://gpu-00:0"}, "not of the form"),
        ({"coordinator": "https://[::1"}, "not of the form"),
        ({"coordinator": "ftp://gpu-00"}, "not of the form"),
        ({"coordinator": "https://u:p@gpu-00"}, "not have a user, path or query"),
        ({"coordinator": "https://gpu-00/x"}, "not have a user, path or query"),
        ({"node": "GPU_01"}, "is not a host name"),
        ({"node": "a\nb"}, "is not a host name"),
        ({"node": "a.b"}, "is not a host name"),
        ({"node": "x" * 64}, "is not a host name"),
        ({"node": "localhost"}, "is not a host name"),
        ({"node": "10"}, "put a letter into it"),
        ({"address": "gpu-01"}, "not an IPv4 or IPv6 address"),
        ({"address": "0.0.0.0"}, "is not reachable for peers"),
        ({"pool": "Big Pool"}, "pool"),
        ({"gpus": "some"}, "gpus"),
        ({"gpus": -1}, "gpus"),
        ({"ports.first": 30_000}, "is below ports.first"),
        ({"ports.last": 70_000}, r"ports\.last"),
        ({"run_as": "root"}, "name another user"),
        ({"run_as": "a b"}, "run_as"),
        ({"run_as": "SUBMITTER", "allow_root_jobs": True}, "set allow_root_jobs to false"),
        ({"user_map": {"ann@example.org": "an n"}}, r"user_map\.ann@example\.org: 'an n'"),
        ({"uid_min": 0}, "uid_min"),
        ({"state_dir": "state"}, "state_dir state is not an absolute path"),
    ],
)
def test_an_agent_that_cannot_work_is_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agent.config.load(file=None, environ={}, flags=flags)


def test_gpus_are_a_number_or_auto() -> None:
    environ = {"MUSTER_AGENT_GPUS": "8", "MUSTER_AGENT_LABELS": "rack=a1"}
    config = agent.config.load(file=None, environ=environ)
    assert config.gpus == 8
    assert config.labels == {"rack": "a1"}
    assert agent.config.load(file=None, environ={"MUSTER_AGENT_GPUS": "auto"}).gpus == "auto"


def test_the_default_name_is_the_host_name_without_its_domain() -> None:
    name = agent.config.default_node_name()
    assert "." not in name
    assert name == name.lower()


def test_networks_are_names_and_cidrs() -> None:
    environ = {"MUSTER_COORDINATOR_NETWORKS": "ib0, 10.1.0.0/16,fd00::/8"}
    config = orchestrator.config.load(file=None, environ=environ)
    assert config.networks == ("ib0", "10.1.0.0/16", "fd00::/8")
    for wrong in ("10.1.0.5/16", "10.1.0.0/", "an interface"):
        with pytest.raises(ConfigError, match=r"networks: .* is neither the name of an interface"):
            orchestrator.config.load(file=None, environ={"MUSTER_COORDINATOR_NETWORKS": wrong})


def test_pool_defaults_that_no_job_could_have_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text("pools: {big: {defaults: {time_limt: 24h}}}\n")
    with pytest.raises(ConfigError, match=r"pools.big.defaults.time_limt: .*did you mean"):
        orchestrator.config.load(file=file, environ={})


def test_the_old_key_of_a_pool_s_defaults_says_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text("pool_defaults: {big: {time_limit: 24h}}\n")
    with pytest.raises(ConfigError, match=r"write pools: \{lab: \{defaults: "):
        orchestrator.config.load(file=file, environ={})


def test_a_pool_s_order_is_a_word_and_its_keys_are_known(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text("pools: {big: {backfill: off, promises: 7}}\n")
    pool = orchestrator.config.load(file=file, environ={}).pools["big"]
    assert (pool.backfill, pool.promises, pool.defaults) == ("off", 7, {})
    for wrong in ("{backfil: off}", "{backfill: greedy}", "{promises: 0}"):
        file.write_text(f"pools: {{big: {wrong}}}\n")
        with pytest.raises(ConfigError, match="pools"):
            orchestrator.config.load(file=file, environ={})


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_the_mode_of_the_hosts_file_may_be_off(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"hosts: {{mode: {mode}}}\nlabels: {{rdma: {mode}}}\n")
    config = agent.config.load(file=file, environ={})
    assert (config.hosts.mode, config.labels) == (mode, {"rdma": mode})


def test_pool_defaults_are_as_written_as_in_a_job_file(tmp_path: Path) -> None:
    """Plain YAML would make 1.1 and 8 of `1.10` and `010`, and a boolean of `off`."""
    words = "{rdma: off, priority: 60, env: {A: 010, B: 1.10, C: yes, D: 12:30:00, E: 2026-01-31}}"
    file = tmp_path / "coordinator.yaml"
    file.write_text(f"pools: {{big: {{defaults: &all {words}}}, small: {{defaults: *all}}}}\n")
    defaults = orchestrator.config.load(file=file, environ={}).pool_defaults
    assert defaults["small"] == defaults["big"]
    filled = fill_in(loader.read_yaml("{run: x.py, pool: big}"), defaults).document
    written = loader.read_yaml(f"{words[:-1]}, run: x.py, pool: big}}")
    assert parse_document(filled) == parse_document(written)
