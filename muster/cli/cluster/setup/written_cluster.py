"""Settings of a cluster that `muster up` has written, as its other commands need them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from muster.cli.errors import RefusedError
from muster.cli.output.format import safe


class WrittenCluster(NamedTuple):
    """The settings of a cluster that `up` has written."""

    address: str
    run_as: str
    ca: Path
    cert: Path
    wheels: Path | None


def read_cluster(config: Path) -> WrittenCluster:
    import yaml

    try:
        tree = yaml.safe_load(config.read_text("utf-8"))
        join, tls = tree["join"], tree["tls"]
        wheels = join.get("wheels")
        return WrittenCluster(
            str(join["address"]),
            str(join["run_as"]),
            Path(tls["ca"]),
            Path(tls["cert"]),
            Path(wheels) if wheels else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RefusedError(
            f"{safe(str(config))} was not written by `muster up`; for another cluster, choose "
            "another --dir"
        ) from error
