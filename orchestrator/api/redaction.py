"""Redaction of secrets in shown environments and commands."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

REDACTED: Final = "***"

# Words in names of secrets: HF_TOKEN, AWS_SECRET_ACCESS_KEY, PGPASSWORD, MYSQL_PWD, WANDB_API_KEY;
# not TOKENIZERS_*, not KEY alone and not the shell's own PWD.
_SECRET: Final = re.compile(
    r"(?:(?:^|_)(?:TOKEN|TOKENS|SECRET|SECRETS|PASSPHRASE|CREDENTIAL|CREDENTIALS"
    r"|(?:API|ACCESS|PRIVATE|AUTH|SECRET|WANDB)_?KEY)|PASSWORD|PASSWD|[A-Z0-9]_PWD)(?:_|$)",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"(?P<around>\\?['\"])?(?:(?<![\w-])|(?<=-H))(?P<name>[A-Za-z][\w-]{0,64}+)"
    r"(?:\\?['\"])?+[ \t]{0,64}+:(?:[ \t]|\\ ){0,64}(?P<own>\\?['\"])?"
    r"(?:(?:bearer|basic|token)(?:[ \t]|\\ ){1,64})?",
    re.IGNORECASE,
)
"""A possible header of a request, up to its value, as in a curl command or in JSON. The repetitions
up to the colon are possessive: a shorter one cannot match, and trying them took most of the time.
"""
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
"""Pattern of the value, by the quote that ends it: its own, or one around the whole header."""
_COUNTS: Final = re.compile(r"[+-]?[\d_.]+(?:e[+-]?\d+)?", re.IGNORECASE)
_USERINFO: Final = re.compile(r"""(\bhttps?://|://[^\s/:@'"]*:)[^\s/'"]+(?=@)""", re.IGNORECASE)
"""A password in a URL. For http(s) also the user, which is often a token."""
_OPTION: Final = re.compile(r"--?[A-Za-z][\w.-]*")
_WHOLE: Final = re.compile(r"(?P<name>[-+~]{0,2}[A-Za-z_][\w.-]*)=(?P<value>.+)", re.DOTALL)
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?:(?P<option>--?[A-Za-z][\w.-]*)(?:=|(?:[ \t]|\\\n)+(?!-|[ \t]|\\\n))"
    r"|(?P<variable>[A-Za-z_][\w.-]*)=)"
)
_WORD: Final = re.compile(r"""(?:'[^']*'?|"(?:[^"\\]|\\.)*"?|\\.?|[^\s'"\\;&|])+""", re.DOTALL)
"""A word of a shell command. An unterminated quotation extends to the end."""
_GLUED: Final = re.compile(rf"(?![,)\]}}]){_WORD.pattern}", re.DOTALL)


def is_secret(name: str) -> bool:
    """True if the name of a variable suggests that its value is a secret."""
    return _SECRET.search(name) is not None


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with secret values redacted, and also passwords in URLs."""
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
    """Redact a command, given as words or as a script, from a job file or a specification."""
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
    """Redact a word of a command. The word before it may name it as a secret."""
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
        # Check the position first: a word may be long and contain many names.
        if named.start() < at or not _names_secret(name):
            continue
        value = _WORD.match(script, named.end())
        if value is not None and _hides(name, value[0].strip("'\"")):
            shown += script[at : named.end()] + REDACTED
            at = value.end()
    return shown + script[at:]


def _without_headers(script: str) -> str:
    if ":" not in script:
        return script
    shown, at = "", 0
    for header in _HEADER.finditer(script):
        if header.start() < at or not _is_secret_header(header["name"]):
            continue
        quote = header["own"] or header["around"]
        value = _VALUE_OF_HEADER[quote].match(script, header.end())
        if value is None or not value[0]:
            continue
        shown += script[at : header.end()] + REDACTED
        # Text right behind the quote may be the value of a name that has just been redacted.
        glued = _GLUED.match(script, value.end() + len(quote or ""))
        at = value.end() if glued is None else glued.end()
    return shown + script[at:]


def _is_secret_header(name: str) -> bool:
    # A single word could be any key.
    return _SECRET_HEADER.fullmatch(name) is not None or ("-" in name and _names_secret(name))


def _names_secret(name: str) -> bool:
    """True if the name of a variable, option or setting suggests a secret."""
    return is_secret(re.sub(r"[-+~.]", "_", name))


def _hides(name: str, value: str) -> bool:
    """True if the value of an option or variable is a secret. "Tokens" may also be a count."""
    if not _names_secret(name):
        return False
    return "token" not in name.lower() or _COUNTS.fullmatch(value) is None


def _without_userinfo(text: str) -> str:
    return _USERINFO.sub(rf"\1{REDACTED}", text) if "://" in text else text


def _without_path(url: str) -> str:
    """Return a webhook's address without its path, which is often its only secret."""
    parts = urlsplit(url)
    hidden = parts.path.strip("/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/{REDACTED}" if hidden else url


def without_secrets_inside(tree: Any) -> Any:
    """Redact every `env`, every command and the paths of `notify` webhooks in a specification or in
    a tree that contains one.
    """
    match tree:
        case dict():
            return {name: _hidden(name, value) for name, value in tree.items()}
        case list() | tuple():
            return [without_secrets_inside(item) for item in tree]
        case _:
            return tree
