"""The client's settings: the coordinator's URL and the token.

A flag overrides the environment, which overrides the client's file, which overrides the default. A
token is sent only to the coordinator it belongs to: the one in the file goes to no other address.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from muster.client.errors import SettingsError

DEFAULT_URL: Final = "http://127.0.0.1:7077"
_TOKEN_CHARS_MAX: Final = 4096
_FILE_BYTES_MAX: Final = 65536
_HOW_TO_GET_ONE: Final = (
    "log in with the line from your admin (`muster login https://HOST:7077 ml1...`), or set "
    "MUSTER_TOKEN or --token-file; `muster up` makes a new cluster"
)


class ClientFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The client's file, `~/.config/muster/client.yaml`. `ca` is a PEM file."""

    url: str | None = None
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything needed to call the coordinator. `warnings` are sentences for the user. `url_from`
    and `token_from` name the sources, such as `MUSTER_URL` or a file; empty if the caller gave the
    value."""

    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    warnings: tuple[str, ...] = ()
    url_from: str = ""
    token_from: str = ""


def client_file_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the client's file: MUSTER_CONFIG, or else in the user's configuration
    folder."""
    if environ.get("MUSTER_CONFIG"):
        return Path(environ["MUSTER_CONFIG"])
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~") / ".config")
    return Path(base).expanduser() / "muster" / "client.yaml"


def given_settings(
    environ: Mapping[str, str], url: str | None, token: str | None, ca: Path | None
) -> Settings:
    """Return the given settings, completed by `load_settings` if needed. Raises SettingsError."""
    if url is None or token is None:
        found = load_settings(environ, url=url, token=token)
        return replace(found, ca=ca or found.ca)
    check_url(url)
    return Settings(url.rstrip("/"), _checked(token, "the token given"), ca)


def load_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    token_file: Path | None = None,
    config: Path | None = None,
    token: str | None = None,
) -> Settings:
    """Combine the settings. `url`, `token_file` and `config` (the client's file) are the flags;
    `token` is a token that is already known. Raises SettingsError."""
    warnings: list[str] = []
    path = config or client_file_path(environ)
    named = "--config" if config else "MUSTER_CONFIG" if environ.get("MUSTER_CONFIG") else ""
    file = _read_client_file(path, warnings, named)
    chosen, url_from = _url(environ, url, file, path)
    check_url(chosen)
    if token is not None:
        token, token_from = _checked(token, "the token given"), ""
    else:
        token, token_from = _token(environ, token_file, file, path, chosen, warnings)
    ca = environ.get("MUSTER_CA") or file.ca
    return Settings(
        chosen.rstrip("/"),
        token,
        Path(ca) if ca else None,
        tuple(warnings),
        url_from=url_from,
        token_from=token_from,
    )


def _url(
    environ: Mapping[str, str], flag: str | None, file: ClientFile, path: Path
) -> tuple[str, str]:
    """Return the address and its source."""
    if flag:
        return flag, "--url"
    if environ.get("MUSTER_URL"):
        return environ["MUSTER_URL"], "MUSTER_URL"
    if file.url:
        return file.url, str(path)
    return DEFAULT_URL, f"the default, as neither MUSTER_URL nor {path} has one"


def _token(
    environ: Mapping[str, str],
    token_file: Path | None,
    file: ClientFile,
    path: Path,
    url: str,
    warnings: list[str],
) -> tuple[str, str]:
    """Return the token and its source. Raises SettingsError."""
    if token_file is not None:
        return _checked(_read_token(token_file, warnings), str(token_file)), str(token_file)
    if environ.get("MUSTER_TOKEN"):
        return _checked(environ["MUSTER_TOKEN"], "MUSTER_TOKEN"), "MUSTER_TOKEN"
    if file.token is None and file.token_file is None:
        raise SettingsError(
            f"there is no token to identify you with: neither MUSTER_TOKEN nor {path} has one",
            _HOW_TO_GET_ONE,
        )
    if file.url is not None and file.url.rstrip("/") != url.rstrip("/"):
        raise SettingsError(
            f"the token in {path} is for {file.url} and is not sent to {url}",
            "name a token for it with --token-file or MUSTER_TOKEN",
        )
    if file.token is not None:
        return _checked(file.token, str(path)), str(path)
    other = path.parent / Path(file.token_file or "").expanduser()
    return _checked(_read_token(other, warnings), str(other)), str(other)


def check_url(text: str) -> SplitResult:
    """Accept `http://` for loopback addresses and `https://` for any. Raises SettingsError."""
    try:
        url = urlsplit(text)
        port = url.port
        (url.hostname or "").encode("idna")  # as the look-up of the name does
    except ValueError as error:
        raise SettingsError(f"the address {text!r} is not a URL: {error}", _URL_HINT) from None
    strange = url.path not in {"", "/"} or url.query or url.fragment or url.username is not None
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0 or strange:
        raise SettingsError(f"the address {text!r} is not of the form https://host:port", _URL_HINT)
    if url.scheme == "http" and not is_loopback(url.hostname):
        raise SettingsError(
            f"{text} is reached over the network without TLS, so your token could be read on the "
            "way",
            "use https://, or a tunnel that ends on this machine",
        )
    return url


_URL_HINT: Final = (
    "set it as https://HOST:7077 by --url, MUSTER_URL or the argument of `muster login`"
)


def is_loopback(host: str) -> bool:
    """True if `host`, an address or a name, never leaves this machine."""
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked(text: str, origin: str) -> str:
    token = text.strip()
    # Because it becomes a header, refuse anything but visible ASCII.
    if not token or len(token) > _TOKEN_CHARS_MAX or not all("!" <= char <= "~" for char in token):
        raise SettingsError(
            f"{origin} does not contain a token",
            "a token is one word, muster_admin_... or the like",
        )
    return token


def _read_client_file(path: Path, warnings: list[str], named: str) -> ClientFile:
    try:
        raw = _read_private(path, warnings)
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{path}, named by {named}, does not exist") from None
        return ClientFile()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    plain = _read_plain(raw)
    return _read_yaml(path, raw) if plain is None else plain


def _read_plain(raw: bytes) -> ClientFile | None:
    """Parse a file as `muster init` writes it, one quoted string per line. Returns None for other
    YAML.

    A JSON string is the same in YAML, and loading a YAML parser takes a tenth of a command's start.
    """
    fields: dict[str, str] = {}
    try:
        for line in raw.decode().splitlines():
            if line.startswith("#") or not line:
                continue
            name, colon, value = line.partition(": ")
            if not colon or name in fields:
                return None
            fields[name] = msgspec.json.decode(value, type=str)
        return msgspec.convert(fields, ClientFile)
    except ValueError:
        return None


def _read_yaml(path: Path, raw: bytes) -> ClientFile:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.load(raw.decode(), loader)  # noqa: S506, TID251 - both are safe loaders
        return msgspec.convert({} if tree is None else tree, ClientFile)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # Omit the parser's own text, which may quote the line that holds the token.
        where = f" ({error})" if isinstance(error, msgspec.ValidationError) else ""
        raise SettingsError(
            f"{path} is not a client configuration{where}",
            "it has the keys url, token or token_file, and ca",
        ) from None


def _read_token(path: Path, warnings: list[str]) -> str:
    try:
        return _read_private(path, warnings).decode("ascii", errors="replace")
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be read: {error.strerror}") from error


def _read_private(path: Path, warnings: list[str]) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            warnings.append(f"{path} holds a token and others can read it: chmod 600 {path}")
        return file.read(_FILE_BYTES_MAX)
