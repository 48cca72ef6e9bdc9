"""The CA and the settings with which nodes join, read from the files of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from muster.daemon.errors import ConfigError, FileError
from muster.wheels.manifest import WheelManifest, read_manifest
from orchestrator.config import CoordinatorConfig, ca_pem

if TYPE_CHECKING:
    from muster.daemon.certificates import Authority

_log = structlog.get_logger("muster.coordinator")


class Wheels(NamedTuple):
    """The wheels that nodes can install, and the pin of the coordinator's public key for curl."""

    manifest: WheelManifest
    pin: str


@dataclass(frozen=True, slots=True)
class EnrolmentSettings:
    """The CA that signs certificates of nodes, the port of agents, the certificates' lifetime,
    `approve` if new nodes wait for an operator, the site's `run_as`, the HOST:PORT of the
    coordinator, its certificate, the directory of wheels, and the interpreter of jobs on nodes.
    """

    authority: Authority
    agents_port: int
    certificate_s: float
    approve: bool = False
    run_as: str = ""
    address: str = ""
    cert: Path | None = None
    wheels: Path | None = None
    python: str = ""
    _logged: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def read_wheels(self) -> Wheels | None:
        """Return the wheels on disk and the pin of the present certificate. Returns None if nodes
        cannot install Muster from here.
        """
        from muster.daemon.certificates import public_key_pin

        if self.wheels is None or self.cert is None or not self.address:
            return None
        try:
            manifest = read_manifest(self.wheels)
            pin = public_key_pin(self.cert.read_bytes())
        except (FileError, OSError, ValueError) as error:
            # Every request reads them, so only a change is logged.
            why = str(error)
            if why not in self._logged:
                _log.warning("wheels_unreadable", why=why)
            self._logged.clear()
            self._logged.add(why)
            return None
        self._logged.clear()
        return None if manifest is None else Wheels(manifest, pin)


def enrolment_settings(config: CoordinatorConfig) -> EnrolmentSettings | None:
    """Return the CA and the settings with which nodes join; None if none do. Raises ConfigError."""
    tls, agents = config.tls, config.listen_agents
    if tls is None or agents is None or tls.ca is None or tls.ca_key is None:
        return None
    # Because importing cryptography takes time and memory, only coordinators that sign do so.
    from muster.daemon.certificates import Authority, is_authority

    try:
        mode, key = tls.ca_key.stat().st_mode, tls.ca_key.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls.ca_key: {tls.ca_key} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"tls.ca_key: others can read {tls.ca_key}; run: chmod 600 {tls.ca_key}")
    authority = Authority(ca_pem(config), key)
    if not is_authority(authority):
        raise ConfigError(f"tls.ca_key: {tls.ca_key} is not the key of the CA in {tls.ca}")
    join = config.join
    return EnrolmentSettings(
        authority,
        agents.port,
        join.certificate_s,
        join.approve,
        join.run_as,
        join.address,
        tls.cert,
        join.wheels,
        join.python,
    )
