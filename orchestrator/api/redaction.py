"""Secrets stay where they are used: what is shown of an environment does not have them."""

import re
from collections.abc import Mapping
from typing import Final

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
