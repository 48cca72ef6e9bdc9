"""Bodies and responses of the routes by which nodes join and renew their certificates."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from muster.protocol.timestamp import Timestamp

JOIN_S: Final = 3600.0
KEY_RETIRED: Final = "key_retired"
"""Code of a refused join: the node's key belongs to another node, or is accepted no more."""
CLOCK_IN_DOUBT: Final = "clock_in_doubt"
"""Code of a certificate that is not signed, because the coordinator's clock may be wrong."""
_Uses = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Lifetime = Annotated[float, msgspec.Meta(gt=0, le=366 * 86400.0)]
_Pattern = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9*?\[\]-]{1,63}$")]
_Pool = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")]
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Node = Annotated[str, msgspec.Meta(max_length=253)]
_Machine = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f-]{0,64}$")]
_Pem = Annotated[str, msgspec.Meta(max_length=8192)]


class JoinSecretRequest(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Body of `POST /v1/join/secrets`. `uses`: nodes that may join with it. `names`: a pattern of
    their names. `pool`: their pool; empty for each node's own choice.
    """

    uses: _Uses = 1
    expires_s: _Lifetime = JOIN_S
    names: _Pattern = "*"
    pool: _Pool = ""
    label: Annotated[str, msgspec.Meta(max_length=100)] = ""


class JoinSecretView(msgspec.Struct, frozen=True):
    """A join secret, without the secret. `used` counts the nodes that have joined with it. With
    `approve`, each waits for `muster node accept`. `problem` says why it is not accepted.
    """

    id: str
    uses: int
    used: int
    names: str
    pool: str
    approve: bool
    label: str
    by: str
    created: Timestamp
    expires: Timestamp
    problem: str


class NewJoinSecret(msgspec.Struct, frozen=True):
    """A new join secret and its text, which is shown only here. `run_as` and `python` are the
    options of these names for `muster join` at this site; empty if the site has none. `pin` is the
    coordinator's public key as curl's `--pinnedpubkey` takes it, if nodes can install Muster from
    there. `address` is the coordinator's HOST:PORT for nodes; empty if its settings name none.
    """

    secret: JoinSecretView
    text: str
    run_as: str
    pin: str = ""
    python: str = ""
    address: str = ""


class WaitingNode(msgspec.Struct, frozen=True):
    """A machine at `peer` that waits to be `node`. `known`: another machine has the name now."""

    node: str
    peer: str
    fingerprint: str
    known: bool


class EnrolmentList(msgspec.Struct, frozen=True):
    """The join secrets, the oldest first, and the machines that wait for an operator."""

    secrets: tuple[JoinSecretView, ...]
    waiting: tuple[WaitingNode, ...]


class RevokeSecretRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/join/secrets/{id}/revoke`."""


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/join`: the join secret (`ID-SECRET`), the node's name, a signing request
    (PEM) for that name, and the id of the machine.
    """

    secret: _Text
    node: _Node
    request: _Pem
    machine: _Machine = ""

    def __repr__(self) -> str:
        return f"JoinRequest({self.node})"


class JoinAnswer(msgspec.Struct, frozen=True):
    """Response of a join: the node's certificate (PEM), the port at which agents connect, and the
    pool of the secret. With `waits`, the certificate is accepted after `muster node accept`.
    """

    certificate: str
    agents_port: int
    pool: str
    waits: bool


class RenewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/agent/certificate`: a signing request (PEM) with a new key."""

    request: _Pem


class RenewAnswer(msgspec.Struct, frozen=True):
    """Response of a renewal: the node's next certificate (PEM)."""

    certificate: str


class AcceptRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/accept`. With `reject`, the machine that waits is forgotten."""

    reject: bool = False


class RevokeNodeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/nodes/{id}/revoke`."""
