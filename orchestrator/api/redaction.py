"""Secrets stay where they are used: what is shown of an environment does not have them."""

import re
from collections.abc import Mapping
from typing import Any, Final

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


def without_secrets_inside(tree: Any) -> Any:
    """A specification, or whatever has one inside, with the secrets of each `env` redacted."""
    match tree:
        case dict():
            return {
                name: without_secrets(value)
                if name == "env" and isinstance(value, dict)
                else without_secrets_inside(value)
                for name, value in tree.items()
            }
        case list() | tuple():
            return [without_secrets_inside(item) for item in tree]
        case _:
            return tree
