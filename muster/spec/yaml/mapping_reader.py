"""Reader of a map in a job file, key by key, which collects every mistake.

A reader returns the checked value or the default; when it returns the default because of a mistake,
the mistake is in `problems`, so a caller may go on and find the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from muster.spec import units, unsupported
from muster.spec.errors import InvalidValueError, ProblemKind, Problems, printable, shown
from muster.spec.suggestions import replacement, suggestion
from muster.spec.yaml.loader import join, scalar_text

T = TypeVar("T")

_HIDDEN: Final = ("env", "secrets")


class GivenValue(NamedTuple):
    """A given value: the path with the spelling used, and the value, never None."""

    path: str
    value: object


class Section:
    """A map of the job file at `path` (empty for the whole job)."""

    def __init__(self, raw: Mapping[str, object], path: str, problems: Problems) -> None:
        self.raw = raw
        self.path = path
        self.problems = problems
        self._known: set[str] = set()
        self._names: set[str] = set()  # without aliases

    def take(self, key: str, *aliases: str) -> GivenValue | None:
        """Return the value of `key` or of one alias; None if not given or invalid (reported)."""
        spellings = (key, *aliases)
        self._known.update(spellings)
        self._names.add(key)
        given = [spelling for spelling in spellings if spelling in self.raw]
        if not given:
            return None
        used = given[0]
        path = join(self.path, used)
        for other in given[1:]:
            self.problems.add(
                join(self.path, other),
                self._shown(other),
                f"is another name of `{used}`, which is given too",
                f"keep `{key}`",
            )
        value = self.raw[used]
        if value is None:
            self.problems.add(path, None, "is empty", "give a value, or leave the key out")
            return None
        return GivenValue(path, value)

    def read(self, key: str, reader: Callable[[str], T], default: T, *aliases: str) -> T:
        """Return `key` as text through a pure `reader` that raises `InvalidValueError`."""
        found = self.take(key, *aliases)
        return default if found is None else self.typed(found, reader, default)

    def typed(self, found: GivenValue, reader: Callable[[str], T], default: T) -> T:
        """Return a taken value as text through `reader`."""
        try:
            return reader(scalar_text(found.value))
        except InvalidValueError as refused:
            self.problems.refuse(found.path, shown(found.value), refused)
            return default

    def items(self, key: str, reader: Callable[[str], T], example: str) -> tuple[T, ...]:
        """Return a list of scalars, each through `reader`, without repetitions."""
        found = self.take(key)
        if found is None:
            return ()
        if not isinstance(found.value, list | tuple):
            self.problems.add(found.path, shown(found.value), "must be a list", f"write {example}")
            return ()
        made: dict[T, None] = {}  # keeps the order, and finds repetitions in a long list fast
        for index, item in enumerate(found.value):
            path = f"{found.path}[{index}]"
            try:
                value = reader(scalar_text(item))
            except InvalidValueError as refused:
                self.problems.refuse(path, shown(item), refused)
                continue
            if value in made:
                self.problems.add(path, shown(item), "is given twice", "keep one")
            else:
                made[value] = None
        return tuple(made)

    def finish(self) -> None:
        """Report every key that was not taken: those of a later release, and unknown ones."""
        promised: Mapping[str, str] = unsupported.LATER_KEYS.get(self.path, {})
        for key in self.raw:
            if key in self._known:
                continue
            path = join(self.path, key)
            if key in promised:
                self.problems.add(
                    path,
                    self._shown(key),
                    unsupported.not_yet(f"`{path}`"),
                    promised[key],
                    ProblemKind.LATER,
                )
            elif self.problems.full:
                self.problems.add(path, None, "unknown key")
            else:
                self._unknown(path, key, promised)

    def _unknown(self, path: str, key: str, promised: Mapping[str, str]) -> None:
        meant = suggestion(self.path, key, self._known | set(promised))
        place = f" in `{self.path}`" if self.path else ""
        if (replaced := replacement(self.path, key)) is not None:
            hint = replaced
        elif meant is not None and meant in promised:
            hint = f"{unsupported.not_yet(f'`{meant}`')}: {promised[meant]}"
        elif meant:
            hint = f"did you mean `{meant}`?"
        else:
            hint = f"known keys{place}: {', '.join(sorted(self._names))}"
        # Do not repeat the value: a misspelled `secrets` or `env` contains secrets.
        self.problems.add(
            printable(path),
            None,
            f"there is no key `{printable(key)}`{place}",
            hint,
            ProblemKind.UNKNOWN,
        )

    def _shown(self, key: str) -> str | None:
        return None if key in _HIDDEN else shown(self.raw[key])


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        number = units.integer(text)
        if not low <= number <= high:
            raise InvalidValueError(
                f"is not between {low} and {high}", f"write a number from {low} to {high}"
            )
        return number

    return read


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a reader of durations from `low` to `high` seconds."""

    def read(text: str) -> float:
        length = units.duration(text)
        if not low <= length <= high:
            raise InvalidValueError(
                f"is not between {units.duration_text(low)} and {units.duration_text(high)}",
                "give a length within these bounds",
            )
        return length

    return read
