"""An https server of git repositories, with a CA of its own."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

PASSWORD = "pw-4711"

_AUTHOR = {
    "GIT_AUTHOR_NAME": "ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return its output."""
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **_AUTHOR},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class GitServer:
    """Repositories below `root`, each as `NAME.git`. Those below /private/ need a password, and
    those below /dumb/ are plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.credentials: list[str] = []
        authority = trustme.CA()
        self.ca = root / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        # For agents, whose users read it.
        self.config = root / "gitconfig"
        self.config.write_text(f"[http]\n\tsslCAInfo = {self.ca}\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        server = self

        class Handler(_Handler):
            git_server = server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}"

    def repository(self, name: str, **files: str) -> str:
        """Create a bare repository of one commit on `main`, and return the commit."""
        work = self.root / "work" / name
        work.mkdir(parents=True)
        git(work, "init", "-q")
        commit = self.commit(name, **files)
        git(self.root, "clone", "-q", "--bare", str(work), f"{name}.git")
        self._info(name)
        return commit

    def push(self, name: str, *refs: str, **files: str) -> str:
        """Add a commit to `main` of a repository, push it and `refs`, and return the commit."""
        commit = self.commit(name, **files)
        target = str(self.root / f"{name}.git")
        git(self.root / "work" / name, "push", "-q", target, "main", *refs)
        self._info(name)
        return commit

    def submodule(self, name: str, path: str, url: str, commit: str) -> str:
        """Push a commit with a submodule, and return the commit."""
        work = self.root / "work" / name
        (work / path).mkdir()
        git(work, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
        text = f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n'
        return self.push(name, **{".gitmodules": text})

    def commit(self, name: str, **files: str) -> str:
        work = self.root / "work" / name
        for path, text in files.items():
            (work / path).write_text(text)
        git(work, "add", "-A")
        git(work, "commit", "-q", "--allow-empty", "-m", "x")
        return git(work, "rev-parse", "HEAD")

    def _info(self, name: str) -> None:
        git(self.root / f"{name}.git", "update-server-info")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def git_server(root: Path) -> Iterator[GitServer]:
    """A server for the time of a test."""
    root.mkdir(exist_ok=True)
    server = GitServer(root)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    git_server: GitServer

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        server = self.git_server
        server.asked.append(self.path)
        path, _, query = self.path.partition("?")
        given = self.headers.get("Authorization", "")
        if given:
            server.credentials.append(base64.b64decode(given.partition(" ")[2]).decode())
        if path.startswith("/private/") and not given.endswith(_basic("ann", PASSWORD)):
            self._answer(401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
            return
        path = path.removeprefix("/private")
        if path.startswith("/dumb/"):
            file = server.root / path.removeprefix("/dumb/")
            found = file.read_bytes() if file.is_file() else None
            self._answer(404 if found is None else 200, {}, found or b"")
            return
        self._answer(*_backend(server.root, self, path, query, body))

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _backend(
    root: Path, request: _Handler, path: str, query: str, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    done = subprocess.run(
        ["git", "http-backend"],
        input=body,
        env={
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": request.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        },
        capture_output=True,
        check=False,
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    return int(headers.pop("Status", "200 OK").split()[0]), headers, content
