"""The `env` of a job: the variables that a user may set, and values for bare names.

Messages never repeat values, because they may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from muster.spec.errors import InvalidValueError, Problems, printable
from muster.spec.yaml.loader import join, scalar_text
from muster.spec.yaml.mapping_reader import GivenValue

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Linux limits each string of environment and argv to 128 KiB, including the final NUL.
MAX_STRING_BYTES: Final = 128 * 1024 - 1

_OF_TORCHRUN: Final = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    }
)
_OURS: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"})


def read_env(found: GivenValue, caller: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Parse `env` in map or list form. A bare name (`KEY` in a list, `KEY:` in a map) takes its
    value from `caller`, the submitter's environment."""
    made: dict[str, str] = {}
    for path, name, value in _entries(found, problems):
        try:
            check_name(name)
            if name in made:
                raise InvalidValueError(f"`{name}` is given twice", "keep one")
            made[name] = _value(name, value, caller)
        except InvalidValueError as refused:
            problems.refuse(path, None, refused)
    return made


def _entries(found: GivenValue, problems: Problems) -> Iterator[tuple[str, str, object]]:
    """Yield path, name and value (None for a bare name) of each entry."""
    if isinstance(found.value, dict):
        for name, value in found.value.items():
            yield join(found.path, printable(str(name))), str(name), value
        return
    if not isinstance(found.value, list | tuple):
        problems.add(
            found.path,
            None,
            "must be a map or a list",
            "write `env: {KEY: value}` or `- KEY=value`",
        )
        return
    for index, item in enumerate(found.value):
        path = f"{found.path}[{index}]"
        if not isinstance(item, str):
            problems.add(path, None, "must be text", "write `- KEY=value`, or `- KEY` for yours")
            continue
        name, equals, value = item.partition("=")
        yield path, name, value if equals else None


def check_name(name: str) -> None:
    """Raise `InvalidValueError` if a job may not set this variable."""
    if not _NAME.fullmatch(name):
        raise InvalidValueError(
            f"`{printable(name)}` is not a valid variable name",
            "letters, digits and `_`, not beginning with a digit",
        )
    if name in _OF_TORCHRUN:
        raise InvalidValueError(
            f"`{name}` is a rank's own, set for each by torchrun or by Muster",
            "leave it out; MUSTER_NODE_RANK and MUSTER_NUM_NODES say which node it is",
        )
    if name in _OURS or name.startswith(("MUSTER_", "PET_")):
        raise InvalidValueError(
            f"`{name}` is set by Muster for each node", "leave it out; Muster sets it"
        )


def _value(name: str, value: object, caller: Mapping[str, str]) -> str:
    if value is None:
        if name not in caller:
            raise InvalidValueError(
                f"`{name}` is not set in your environment",
                f"export {name} before you submit, or write `{name}: value` "
                f'(`{name}: ""` for an empty one)',
            )
        text = caller[name]
    else:
        text = scalar_text(value)
    if "\0" in text:
        raise InvalidValueError(f"the value of `{name}` contains a NUL character", "remove it")
    # Non-UTF-8 bytes become lone surrogates in Python's environment, and JSON cannot contain those.
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(
            f"the value of `{name}` is not UTF-8", "set it to UTF-8 text"
        ) from None
    if len(name) + 1 + len(encoded) > MAX_STRING_BYTES:
        raise InvalidValueError(
            f"the value of `{name}` is longer than the {MAX_STRING_BYTES // 1024 + 1} KiB that "
            "Linux takes",
            "pass it in a file",
        )
    return text
