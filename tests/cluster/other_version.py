"""`python -m tests.cluster.other_version VERSION DAEMON ...`: a daemon as another release has it.

What differs between releases is changed where a process begins: the numbers of the protocol in the
source of muster.protocol.link.control_channel, before anything has imported it, and what goes over
the link. `next` says fields and messages of its own; `ancient` and `distant` have no protocol in
common with this one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from typing import Any, Final

import msgspec

MESSAGES: Final = "muster.protocol.link.control_channel"
_LATER: Final = {"later": {"x": [1, {"y": None}]}, "soon": "words"}


class Future(msgspec.Struct, frozen=True, tag="of_the_future"):
    """A message that this version does not have."""

    task: str = "1.1.0"
    what: str = "unheard of"


def speak(least: int, most: int) -> None:
    """Have this process speak the protocols `least` to `most`."""
    spec = importlib.util.find_spec(MESSAGES)
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    for name, number in (("PROTOCOL_MIN", least), ("PROTOCOL_MAX", most)):
        source, count = re.subn(rf"(?m)^{name} = \d+$", f"{name} = {number}", source)
        assert count == 1, name
    sys.modules[MESSAGES] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    import muster.protocol.link

    muster.protocol.link.control_channel = module


def say_more() -> None:
    """Put unknown fields into all that is said on either connection, in every object."""
    from muster.protocol.link import codec, log_channel

    encode, encode_text = codec.encode, log_channel.encode_text

    def more(frame: Any) -> bytes:
        return json.dumps(_sprinkled(json.loads(encode(frame)))).encode()

    def more_text(message: Any) -> str:
        return json.dumps({**json.loads(encode_text(message)), **_LATER})

    codec.encode, log_channel.encode_text = more, more_text


def _sprinkled(tree: Any) -> Any:
    """Recognise structs among mappings by their place: the frame, its body, and the fields named
    here."""
    body = tree["body"]
    for name in ("observed", "changes", "prepared", "rendezvous", "exit", "fabric"):
        if isinstance(body.get(name), dict):
            body[name] |= _LATER
    for name in ("tasks", "ranks"):
        if body["type"] != "arrange":
            body[name] = [
                {**part, **_LATER} if isinstance(part, dict) else part
                for part in body.get(name, ())
            ]
    return {**tree, **_LATER, "body": {**body, **_LATER}}


def say_the_unheard_of(daemon: str) -> None:
    """After each report, or before each command, a message of a type that nobody knows."""
    if daemon == "agent":
        from agent.link import control
        from muster.protocol.link.control_channel import Hello

        send = control._Connection.send

        def send_two(self: Any, report: Any) -> None:
            send(self, report)
            if not isinstance(report, Hello):
                send(self, Future())  # type: ignore[arg-type]

        control._Connection.send = send_two  # type: ignore[method-assign]
    else:
        from muster.protocol.link.control_channel import Welcome
        from orchestrator.shell.agent_sessions import AgentSessions

        put = AgentSessions.send

        def put_two(self: Any, session: Any, command: Any) -> None:
            if not isinstance(command, Welcome):
                put(self, session, Future())  # type: ignore[arg-type]
            put(self, session, command)

        AgentSessions.send = put_two  # type: ignore[method-assign]


def call_it(version: str, daemon: str) -> None:
    if daemon == "agent":
        import agent.identity

        agent.identity.version = lambda: version
    else:
        import orchestrator.core.engine.decide

        orchestrator.core.engine.decide.VERSION = version


def main(version: str, daemon: str, *arguments: str) -> int:
    with open(importlib.util.find_spec(MESSAGES).origin, encoding="utf-8") as file:  # type: ignore[union-attr, arg-type]
        most = int(re.findall(r"(?m)^PROTOCOL_MAX = (\d+)$", file.read())[0])
    match version:
        case "next":
            speak(1, most + 1)
            say_more()
            say_the_unheard_of(daemon)
        case "ancient":
            speak(0, 0)
        case "distant":
            speak(most + 1, most + 2)
        case _:
            raise SystemExit(f"{version} is no version")
    call_it(f"0.0.{('ancient', 'next', 'distant').index(version)}-{version}", daemon)
    package = {"agent": "agent", "coordinator": "orchestrator"}[daemon]
    begin = importlib.import_module(f"{package}.__main__").main
    return int(begin(list(arguments)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
