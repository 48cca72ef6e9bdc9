"""Calls about join secrets and the certificates of nodes, for `Client.call`."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from muster.client.endpoints import Call
from muster.http.enrolment import (
    AcceptRequest,
    EnrolmentList,
    JoinSecretRequest,
    JoinSecretView,
    NewJoinSecret,
)


def enrolment() -> Call[EnrolmentList]:
    """List the join secrets, and the machines that wait to be nodes."""
    return Call(EnrolmentList, "GET", "/v1/join")


def create_join_secret(wanted: JoinSecretRequest) -> Call[NewJoinSecret]:
    """Create a secret with which nodes join. Its text is in this answer only."""
    body = msgspec.json.encode(wanted)
    return Call(NewJoinSecret, "POST", "/v1/join/secrets", body=body, patience_s=None)


def revoke_join_secret(name: str) -> Call[JoinSecretView]:
    """Revoke a join secret, and return it as it was."""
    path = f"/v1/join/secrets/{quote(name, safe='')}/revoke"
    return Call(JoinSecretView, "POST", path, body=b"{}", patience_s=None)


def accept_node(name: str, *, reject: bool = False) -> Call[EnrolmentList]:
    """Accept, or reject, the machine that waits to be this node."""
    body = msgspec.json.encode(AcceptRequest(reject))
    path = f"/v1/nodes/{quote(name, safe='')}/accept"
    return Call(EnrolmentList, "POST", path, body=body, patience_s=None)


def revoke_node(name: str) -> Call[EnrolmentList]:
    """Accept no certificate of this node any more, which closes its connections."""
    path = f"/v1/nodes/{quote(name, safe='')}/revoke"
    return Call(EnrolmentList, "POST", path, body=b"{}", patience_s=None)
