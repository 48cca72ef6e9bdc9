"""Options of a second `muster up` that differ from what the cluster has: how to change each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.cli.cluster.setup.new_cluster import SYSTEM_DIR
from muster.cli.cluster.setup.server_certificate import names_in
from muster.cli.cluster.setup.written_cluster import WrittenCluster
from muster.cli.cluster.tokens_file import read_tokens
from muster.daemon.errors import ConfigError
from muster.protocol.roles import Role
from muster.spec.errors import InvalidValueError
from muster.spec.units import duration, duration_text


class GivenOptions(NamedTuple):
    """Options as they were given; None or () for those that were not."""

    run_as: str | None = None
    python: str | None = None
    names: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    time_limit_s: float | None = None
    user: str | None = None
    approve: bool = False
    port: int | None = None
    agents_port: int | None = None
    listen: str | None = None


def kept_options(config: Path, written: WrittenCluster, given: GivenOptions) -> list[str]:
    """Return a sentence for each option that the cluster was not set up with."""
    restart = (
        "systemctl restart muster-coordinator"
        if config.parent == SYSTEM_DIR
        else "restart the coordinator"
    )
    found = []
    for option, kept, wanted, change in _differences(written, given):
        how = change or f"change `{_KEYS[option]}` in {config}; then {restart}"
        more = _MORE.get(option, "")
        found.append(f"{option}: kept {kept or 'none'}, you gave {wanted}; {how}{more}")
    return found


_KEYS = {
    "--run-as": "join.run_as",
    "--python": "join.python",
    "--pool": "pools",
    "--time-limit": "pools.*.defaults.time_limit",
    "--approve": "join.approve",
    "--port": "listen.port and join.address",
    "--agents-port": "listen_agents.port",
    "--listen": "listen.host and listen_agents.host",
}
_MORE = {
    "--run-as": ". Nodes that have joined keep theirs, in their agent.yaml",
    "--python": ". Nodes that have joined keep theirs, in their agent.yaml",
    "--port": ". People and nodes that know the old port log in and join again",
    "--agents-port": ". Nodes join again, with `muster token create --join`",
}


def _differences(
    written: WrittenCluster, given: GivenOptions
) -> Iterator[tuple[str, str, str, str]]:
    """Yield option, kept value, given value, and how to change it if not in the file."""
    tree = written.tree
    join, listen, agents = (_part(tree, name) for name in ("join", "listen", "listen_agents"))
    simple = (
        ("--run-as", written.options.run_as, given.run_as),
        ("--python", written.options.python, given.python),
        ("--port", listen.get("port"), given.port),
        ("--agents-port", agents.get("port"), given.agents_port),
        ("--listen", listen.get("host"), given.listen),
    )
    for option, kept, wanted in simple:
        if wanted is not None and str(kept or "") != str(wanted):
            yield option, str(kept or ""), str(wanted), ""
    if given.approve and not join.get("approve"):
        yield "--approve", "false", "true", ""
    known = names_in(written.cert)
    if unknown := [name for name in given.names if name not in known]:
        names = "".join(f" --name {name}" for name in unknown)
        add = f"to add to the certificate: muster up --renew-certificate{names}"
        yield "--name", ", ".join(known), ", ".join(unknown), add
    pools = _part(tree, "pools")
    if new := [name for name in given.pools if name not in pools]:
        yield "--pool", ", ".join(pools), ", ".join(new), ""
    if given.time_limit_s is not None:
        wanted = duration_text(given.time_limit_s)
        if other := [text for text in _limits(pools) if _seconds(text) != given.time_limit_s]:
            yield "--time-limit", ", ".join(dict.fromkeys(other)), wanted, ""
    admins = _first_admins(tree)
    if given.user is not None and given.user not in admins:
        add = f"muster user add {given.user} --role admin --login"
        yield "--user", ", ".join(admins), given.user, add


def _part(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def _limits(pools: Mapping[str, Any]) -> list[str]:
    return [str(_part(_part(pools, name), "defaults").get("time_limit", "none")) for name in pools]


def _seconds(text: str) -> float | None:
    try:
        return duration(text)
    except InvalidValueError:
        return None


def _first_admins(tree: Mapping[str, Any]) -> list[str]:
    try:
        records = read_tokens(Path(str(tree.get("tokens_file", ""))))
    except ConfigError:
        return []
    return [record.user for record in records if record.role is Role.ADMIN]
