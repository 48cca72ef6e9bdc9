"""Secrets stay where they are used: what is shown of an environment does not have them."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

REDACTED: Final = "***"

# By word of the name: HF_TOKEN, AWS_SECRET_ACCESS_KEY, DB_PASSWORD, WANDB_API_KEY; not TOKENIZERS_*
# and no KEY alone.
_SECRET: Final = re.compile(
    r"(?:^|_)(?:TOKEN|TOKENS|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS"
    r"|(?:API|ACCESS|PRIVATE|AUTH|SECRET)_?KEY)(?:_|$)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET.search(name) is not None


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with the values of secret names redacted."""
    return {name: REDACTED if is_secret(name) else value for name, value in env.items()}


def _hidden(name: str, value: Any) -> Any:
    if name == "env" and isinstance(value, dict):
        return without_secrets(value)
    if name == "notify" and isinstance(value, list | tuple):
        return [_without_path(str(url)) for url in value]
    return without_secrets_inside(value)


def _without_path(url: str) -> str:
    """A webhook's address often is all that its sender has to show."""
    parts = urlsplit(url)
    hidden = parts.path.strip("/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/{REDACTED}" if hidden else url


def without_secrets_inside(tree: Any) -> Any:
    """A specification, or whatever has one inside, with the secrets of each `env` redacted, and the
    webhooks of `notify` without their paths."""
    match tree:
        case dict():
            return {name: _hidden(name, value) for name, value in tree.items()}
        case list() | tuple():
            return [without_secrets_inside(item) for item in tree]
        case _:
            return tree
