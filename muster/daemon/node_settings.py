"""The settings of agents that a coordinator may give, and the check of what it gives.

Everything else is refused: a coordinator that is not to be trusted must not decide what root does
on a node.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from muster.daemon.logging import Level

# The kernel has no more pids.
Processes = Annotated[int, msgspec.Meta(ge=16, le=4194304)]

GIVEN: Final[Mapping[str, Any]] = {
    "hangs.period_s": Annotated[float, msgspec.Meta(ge=0.5, le=86400)],
    "unkillable_s": Annotated[float, msgspec.Meta(ge=5, le=86400)],
    "processes_max": Processes,
    "health_check_period_s": Annotated[float, msgspec.Meta(ge=1, le=86400)],
    "log.level": Level,
}
"""Type of each setting that a coordinator may give. An agent takes all of them up while it runs, so
no period may keep it busy."""


class NotGivenError(ValueError):
    """A setting that a coordinator may not give, or a value that is not valid."""


def read_given(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Return the path and the checked value of each setting in a part of a coordinator's file.
    Its values are text, whatever they mean. Raises NotGivenError.
    """
    for name, value in tree.items():
        path = f"{above}{name}"
        if path in GIVEN:
            yield path, check_given(path, value, strict=False)
        elif isinstance(value, Mapping) and any(each.startswith(f"{path}.") for each in GIVEN):
            yield from read_given(value, f"{path}.")
        else:
            raise NotGivenError(refusal(path))


def check_given(name: str, value: Any, *, strict: bool = True) -> Any:
    """Return the value of a setting in its type. Unless `strict`, text is read as a value. Raises
    NotGivenError.
    """
    if name not in GIVEN:
        raise NotGivenError(refusal(name))
    try:
        return msgspec.convert(value, GIVEN[name], strict=strict)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "")
        raise NotGivenError(
            f"{name}: {text[:1].lower()}{text[1:]}, the value is {value!r:.80}"
        ) from error


def refusal(name: str) -> str:
    """Return why a coordinator may not give a setting, and what it may give."""
    close = difflib.get_close_matches(name, GIVEN, n=1, cutoff=0.8)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"{name} is not for a coordinator to give{meant}: what decides what root does on a node, "
        "or whom the node trusts, is in the node's own file only; a coordinator may give "
        f"{', '.join(GIVEN)}"
    )
