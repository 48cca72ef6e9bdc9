"""Settings of a cluster that `muster up` has written, as its other commands need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.cli.cluster.printed_lines import JoinOptions
from muster.cli.errors import RefusedError
from muster.cli.output.format import safe


class WrittenCluster(NamedTuple):
    """The settings of a cluster that `up` has written."""

    address: str
    options: JoinOptions
    ca: Path
    cert: Path
    wheels: Path | None
    tree: Mapping[str, Any]

    @property
    def private(self) -> list[Path]:
        """The files with secrets that exist."""
        tls = self.tree["tls"]
        named = (tls.get("ca_key"), tls.get("key"), self.tree.get("tokens_file"))
        return [path for path in map(Path, filter(None, named)) if path.is_file()]

    def path(self, part: str, name: str) -> Path:
        """Return the path that a setting names. Raises RefusedError."""
        found = self.tree[part].get(name)
        if not isinstance(found, str):
            raise RefusedError(f"the configuration names no {part}.{name}")
        return Path(found)


def read_cluster(config: Path) -> WrittenCluster:
    """Return what the file of `muster up` says. Raises RefusedError."""
    import yaml

    try:
        tree = yaml.safe_load(config.read_text("utf-8"))
        join, tls = tree["join"], tree["tls"]
        wheels = join.get("wheels")
        return WrittenCluster(
            str(join["address"]),
            JoinOptions(str(join["run_as"]), str(join.get("python") or "")),
            Path(tls["ca"]),
            Path(tls["cert"]),
            Path(wheels) if wheels else None,
            tree,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RefusedError(
            f"{safe(str(config))} was not written by `muster up`; for another cluster, choose "
            "another --dir"
        ) from error
