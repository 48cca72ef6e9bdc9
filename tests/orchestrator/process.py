"""A real coordinator process on a loopback port of the kernel's choice, and its tokens."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from muster.protocol.tokens import TokenClass, digest, make

TREE = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0


def token_file(path: Path) -> dict[TokenClass, str]:
    """Write a tokens file with one token of each class, and return their texts."""
    texts, records = {}, []
    for class_ in TokenClass:
        # The same in each folder, as a state folder keeps those that it began with.
        secret = digest(f"of a test: {class_.value}")
        texts[class_] = make(class_, f"{class_.value}1", secret)
        records.append(
            {
                "id": f"{class_.value}1",
                "class": class_.value,
                "sha256": digest(secret),
                "user": f"{class_.value}-user",
                "created": "2026-01-01T00:00:00Z",
                **({"role": "admin"} if class_ is TokenClass.ADMIN else {}),
            }
        )
    path.write_text(json.dumps({"tokens": records}))
    path.chmod(0o600)
    return texts


class CoordinatorProcess:
    """`python -m orchestrator` over one state folder; may be killed and started again."""

    def __init__(
        self, folder: Path, names: Sequence[str] = (), module: str = "orchestrator", **settings: Any
    ) -> None:
        self.folder = folder
        self.module = module
        self.names = list(names)
        self.state_dir = folder / "state"
        tokens = token_file(folder / "tokens")
        self.admin, self.join = tokens[TokenClass.ADMIN], tokens[TokenClass.JOIN]
        self.config = folder / "coordinator.yaml"
        self.port = 0
        self.settings: dict[str, object] = {
            "state_dir": str(self.state_dir),
            "tokens_file": str(folder / "tokens"),
            "log": {"format": "json"},
            **settings,
        }
        self._process: subprocess.Popen[str] | None = None
        self.log: list[dict[str, Any]] = []
        self._more = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def headers(self, token: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self.admin}"}

    def start(self) -> Self:
        """Start it and wait until it serves; the same port again after the first time."""
        listen = {"host": "127.0.0.1", "port": self.port, "names": self.names}
        self.config.write_text(json.dumps({**self.settings, "listen": listen}))
        self._process = run(self.config, self.module)
        serving = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, serving))
        self._reader.start()
        assert serving.wait(DEADLINE_S), f"did not serve: {self.log}"
        assert self.port, f"ended before it served: {self.log}"
        return self

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of an event that have arrived by now, which may lack the latest."""
        return [line for line in self.log if line.get("event") == name]

    def logged(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for `count` lines of an event, and return all that have arrived. They come by a pipe
        and a thread, so a test may see the effect of an event first."""
        with self._more:
            self._more.wait_for(lambda: len(self.events(name)) >= count, DEADLINE_S)
            return self.events(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def wait(self) -> int:
        """Wait for an end that comes by itself; returns the exit code."""
        return self._end(None)

    def _end(self, number: signal.Signals | None) -> int:
        process, self._process = self._process, None
        assert process is not None
        if number is not None:
            process.send_signal(number)
        code = process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert process.stderr is not None
        process.stderr.close()
        return code

    def _read(self, process: subprocess.Popen[str], serving: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "text", "text": line}
            with self._more:
                self.log.append(event)
                self._more.notify_all()
            if event.get("event") == "serving":
                self.port = int(event["address"].rpartition(":")[2])
                serving.set()
        serving.set()


def run(config: Path, module: str = "orchestrator") -> subprocess.Popen[str]:
    """Start `python -m orchestrator` on a configuration; its standard error is a pipe."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return subprocess.Popen(
        [sys.executable, "-m", module, "--config", str(config)],
        cwd=TREE,
        env={**environ, "PYTHONPATH": str(TREE)},
        stderr=subprocess.PIPE,
        text=True,
    )


def add_token(
    process: CoordinatorProcess, user: str, role: str = "user", teams: Sequence[str] = ()
) -> str:
    """Make a user with a role and teams, and return the text of a new token of theirs."""
    given = {"role": role, "teams": list(teams)}
    if _asked(process, "POST", "/v1/users", {"name": user, **given}) is None:
        set_user(process, user, **given)
    made = _asked(process, "POST", "/v1/tokens", {"user": user})
    assert made is not None
    return str(made["text"])


def set_user(process: CoordinatorProcess, user: str, **fields: object) -> None:
    """Change the role or the teams of a user."""
    assert _asked(process, "PATCH", f"/v1/users/{user}", fields) is not None


def _asked(process: CoordinatorProcess, method: str, path: str, body: object) -> Any:
    """The answer to an admin; None for 409."""
    data = json.dumps(body).encode()
    headers = {**process.headers(), "Content-Type": "application/json"}
    request = urllib.request.Request(process.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        return None
