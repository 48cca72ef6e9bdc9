"""Secrets stay where they are used: what is shown of an environment or a command does not have
them."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

REDACTED: Final = "***"

# By word of the name: HF_TOKEN, AWS_SECRET_ACCESS_KEY, PGPASSWORD, MYSQL_PWD, WANDB_API_KEY; not
# TOKENIZERS_*, no KEY alone and not the shell's own PWD.
_SECRET: Final = re.compile(
    r"(?:(?:^|_)(?:TOKEN|TOKENS|SECRET|SECRETS|PASSPHRASE|CREDENTIAL|CREDENTIALS"
    r"|(?:API|ACCESS|PRIVATE|AUTH|SECRET|WANDB)_?KEY)|PASSWORD|PASSWD|[A-Z0-9]_PWD)(?:_|$)",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"(?P<around>\\?['\"])?(?:(?<![\w-])|(?<=-H))(?P<name>[A-Za-z][\w-]{0,64})(?:\\?['\"])?"
    r"[ \t]{0,64}:(?:[ \t]|\\ ){0,64}(?P<own>\\?['\"])?"
    r"(?:(?:bearer|basic|token)(?:[ \t]|\\ ){1,64})?",
    re.IGNORECASE,
)
"""What may be one of a request, as curl is given it or as JSON has it, up to its value."""
_SECRET_HEADER: Final = re.compile(
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-auth|x-[\w-]*(?:key|token|secret)", re.IGNORECASE
)
_VALUE_OF_HEADER: Final = {
    None: re.compile(r"[^\n]*"),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*"),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*'),
    "\\'": re.compile(r"(?:(?!\\')[^\n])*"),
    '\\"': re.compile(r'(?:(?!\\")[^\n])*'),
}
"""By the quote that ends it: its own, or the one around the whole."""
_COUNTS: Final = re.compile(r"[+-]?[\d_.]+(?:e[+-]?\d+)?", re.IGNORECASE)
_USERINFO: Final = re.compile(r"""(\bhttps?://|://[^\s/:@'"]*:)[^\s/'"]+(?=@)""", re.IGNORECASE)
"""A password in a URL; of the web's the user as well, as it often is a token."""
_OPTION: Final = re.compile(r"--?[A-Za-z][\w.-]*")
_WHOLE: Final = re.compile(r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.-]*)=(?P<value>.+)", re.DOTALL)
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?:(?P<option>--?[A-Za-z][\w.-]*)(?:=|(?:[ \t]|\\\n)+(?!-|[ \t]|\\\n))"
    r"|(?P<variable>[A-Za-z_][\w.-]*)=)"
)
_WORD: Final = re.compile(r"""(?:'[^']*'?|"(?:[^"\\]|\\.)*"?|\\.?|[^\s'"\\;&|])+""", re.DOTALL)
"""As a shell reads it; a quotation without its end goes on to the end."""
_GLUED: Final = re.compile(rf"(?![,)\]}}]){_WORD.pattern}", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET.search(name) is not None


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with the values of secret names redacted, and the passwords in URLs."""
    return {
        name: REDACTED if is_secret(name) else _without_userinfo(value)
        for name, value in env.items()
    }


def _hidden(name: str, value: Any) -> Any:
    if name == "env" and isinstance(value, dict):
        return without_secrets(value)
    if name in {"run", "setup"}:
        return _command_without_secrets(value)
    if name == "notify" and isinstance(value, list | tuple):
        return [_without_path(str(url)) for url in value]
    return without_secrets_inside(value)


def _command_without_secrets(command: Any) -> Any:
    """Words or a script, as a job file has them or as a specification does."""
    match command:
        case str():
            return _script_without_secrets(command)
        case list() | tuple():
            words = ["", *map(str, command)]
            return [_word_without_secrets(*pair) for pair in pairwise(words)]
        case dict():
            return {key: _command_without_secrets(value) for key, value in command.items()}
        case _:
            return command


def _word_without_secrets(before: str, word: str) -> str:
    """A word of a command and the one before it, of which it may be the value."""
    if _OPTION.fullmatch(before) and not word.startswith("-") and _hides(before, word):
        return REDACTED
    whole = _WHOLE.fullmatch(word)
    if whole and _hides(whole["name"], whole["value"]):
        return f"{whole['name']}={REDACTED}"
    return _script_without_secrets(word)


def _script_without_secrets(script: str) -> str:
    script = _without_headers(_without_userinfo(script))
    shown, at = "", 0
    for named in _NAMED.finditer(script):
        name = named["option"] or named["variable"]
        # First of all: a word may be long, and have many names in it.
        if named.start() < at or not _names_secret(name):
            continue
        value = _WORD.match(script, named.end())
        if value is not None and _hides(name, value[0].strip("'\"")):
            shown += script[at : named.end()] + REDACTED
            at = value.end()
    return shown + script[at:]


def _without_headers(script: str) -> str:
    shown, at = "", 0
    for header in _HEADER.finditer(script):
        if header.start() < at or not _is_secret_header(header["name"]):
            continue
        quote = header["own"] or header["around"]
        value = _VALUE_OF_HEADER[quote].match(script, header.end())
        if value is None or not value[0]:
            continue
        shown += script[at : header.end()] + REDACTED
        # What stands right behind the quote may be the value of a name that has just been hidden.
        glued = _GLUED.match(script, value.end() + len(quote or ""))
        at = value.end() if glued is None else glued.end()
    return shown + script[at:]


def _is_secret_header(name: str) -> bool:
    # With one word alone it could be any key.
    return _SECRET_HEADER.fullmatch(name) is not None or ("-" in name and _names_secret(name))


def _names_secret(name: str) -> bool:
    """As `is_secret`, of an option or a setting, too."""
    return is_secret(re.sub(r"[-+~.]", "_", name))


def _hides(name: str, value: str) -> bool:
    """Whether the value of an option or a variable is a secret. Tokens are also what is counted."""
    if not _names_secret(name):
        return False
    return "token" not in name.lower() or _COUNTS.fullmatch(value) is None


def _without_userinfo(text: str) -> str:
    return _USERINFO.sub(rf"\1{REDACTED}", text) if "://" in text else text


def _without_path(url: str) -> str:
    """A webhook's address often is all that its sender has to show."""
    parts = urlsplit(url)
    hidden = parts.path.strip("/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/{REDACTED}" if hidden else url


def without_secrets_inside(tree: Any) -> Any:
    """A specification, or whatever has one inside, with the secrets of each `env` and command
    redacted, and the webhooks of `notify` without their paths."""
    match tree:
        case dict():
            return {name: _hidden(name, value) for name, value in tree.items()}
        case list() | tuple():
            return [without_secrets_inside(item) for item in tree]
        case _:
            return tree
