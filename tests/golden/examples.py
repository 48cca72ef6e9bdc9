"""Examples made of a type alone, so that a field that is added is in the next recording."""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import itertools
from typing import Any

import msgspec
from msgspec import UNSET, inspect

_LATER = {"later": {"x": [1]}}
# Texts for fields whose readers accept no other.
_WORDS = {
    "task": "42.1.0",
    "signal": "SIGUSR1",
    "stop_signal": "SIGINT",
    "warn_signal": "SIGUSR2",
    "launcher": "torchrun",
    "source": "/source",
    "target": "/target",
}


def whole(kind: Any) -> Any:
    """Return an instance of `kind` with every field set, no two to the same number or text."""
    numbers = itertools.count(1)
    return msgspec.convert(_filled(inspect.type_info(kind), "", numbers, True, None), kind)


def least(kind: Any) -> Any:
    """Return an instance of `kind` with only its required fields."""
    numbers = itertools.count(1)
    return msgspec.convert(_filled(inspect.type_info(kind), "", numbers, False, None), kind)


def shape(kind: Any) -> str:
    """Changes whenever a field of `kind`, at any depth, is added, removed, renamed or retyped."""
    return hashlib.sha256(_shape(inspect.type_info(kind), ()).encode()).hexdigest()[:12]


def decoded(value: Any) -> Any:
    """All of a value as JSON has it, its defaults among them. Mappings are lists of pairs, since
    keys are added to structs only."""
    match value:
        case msgspec.Struct():
            given = {name: getattr(value, name) for name in value.__struct_fields__}
            return {name: decoded(part) for name, part in given.items() if part is not UNSET}
        case enum.Enum():
            return value.value
        case dict():
            return [[decoded(key), decoded(part)] for key, part in value.items()]
        case list() | tuple():
            return [decoded(part) for part in value]
        case set() | frozenset():
            return sorted(decoded(part) for part in value)
        case object(__dataclass_fields__=names):
            return {name: decoded(getattr(value, name)) for name in names}
        case None | bool() | int() | float() | str():
            return value
        case dt.datetime():
            return value.isoformat()
        case memoryview() | bytes():
            return bytes(value).hex()
        case _:
            return {name: decoded(part) for name, part in vars(value).items()}


def says(recorded: Any, now: Any) -> bool:
    """True if `now` says all that was recorded; it may say more in fields that are new."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        return all(name in now and says(part, now[name]) for name, part in recorded.items())
    if isinstance(recorded, list) and isinstance(now, list):
        return len(recorded) == len(now) and all(map(says, recorded, now))
    return type(recorded) is type(now) and bool(recorded == now)


def with_unknown_fields(tree: Any, kind: Any) -> Any:
    """The JSON of a `kind` with a field in each of its structs that nobody knows."""
    return _sprinkled(tree, inspect.type_info(kind))


def _filled(
    kind: inspect.Type, name: str, numbers: itertools.count[int], full: bool, default: Any
) -> Any:
    match kind:
        case inspect.StructType():
            tree = {
                field.encode_name: _filled(field.type, field.name, numbers, full, field.default)
                for field in kind.fields
                if full or field.required
            }
            if kind.array_like:
                return [*tree.values()]
            return tree if kind.tag_field is None else {kind.tag_field: kind.tag, **tree}
        case inspect.DataclassType():
            return {
                field.encode_name: _filled(field.type, field.name, numbers, full, field.default)
                for field in kind.fields
                if full or field.required
            }
        case inspect.UnionType():
            return _filled(_chosen(kind), name, numbers, full, default)
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType():
            return [_filled(kind.item_type, name, numbers, full, None)] if full else []
        case inspect.FrozenSetType():
            return [_filled(kind.item_type, name, numbers, full, None)] if full else []
        case inspect.TupleType():
            return [_filled(part, name, numbers, full, None) for part in kind.item_types]
        case inspect.DictType() if name == "ranks":
            return {"RANK": f"{next(numbers)}", "LOCAL_RANK": f"{next(numbers)}"}
        case inspect.DictType():
            key = _filled(kind.key_type, name, numbers, full, None)
            return {key: _filled(kind.value_type, name, numbers, full, None)} if full else {}
        case inspect.BoolType():
            return default is not True
        case inspect.IntType():
            return next(numbers)
        case inspect.FloatType():
            return next(numbers) + 0.5
        case inspect.StrType():
            return _WORDS.get(name) or f"{name or 'text'}-{next(numbers)}"
        case inspect.EnumType():
            return list(kind.cls)[-1].value
        case inspect.LiteralType():
            return kind.values[-1]
        case inspect.DateTimeType():
            return f"2026-01-01T00:00:{next(numbers) % 60:02}Z"
        case inspect.AnyType():
            return f"{name}-{next(numbers)}"
        case _:
            raise TypeError(f"there is no example of {kind} ({name}): teach tests/golden/examples")


def _chosen(kind: inspect.UnionType) -> inspect.Type:
    """The richest of the choices."""
    structs = [part for part in kind.types if isinstance(part, inspect.StructType)]
    others = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
    return (structs or others)[0]


def _shape(kind: inspect.Type, above: tuple[type, ...]) -> str:
    match kind:
        case inspect.StructType():
            if kind.cls in above:
                return "..."
            fields = ",".join(
                f"{f.encode_name}{'' if f.required else '?'}:{_shape(f.type, (*above, kind.cls))}"
                for f in kind.fields
            )
            return f"{kind.tag or ''}{'row' if kind.array_like else ''}{{{fields}}}"
        case inspect.DataclassType():
            fields = ",".join(
                f"{f.encode_name}{'' if f.required else '?'}:{_shape(f.type, (*above, kind.cls))}"
                for f in kind.fields
            )
            return f"{{{fields}}}"
        case inspect.UnionType():
            return "(" + "|".join(sorted(_shape(part, above) for part in kind.types)) + ")"
        case inspect.VarTupleType() | inspect.ListType():
            return f"[{_shape(kind.item_type, above)}]"
        case inspect.SetType() | inspect.FrozenSetType():
            return f"[{_shape(kind.item_type, above)}]"
        case inspect.TupleType():
            return "[" + ",".join(_shape(part, above) for part in kind.item_types) + "]"
        case inspect.DictType():
            return f"<{_shape(kind.key_type, above)}:{_shape(kind.value_type, above)}>"
        case inspect.EnumType():
            return "enum(" + ",".join(sorted(str(word.value) for word in kind.cls)) + ")"
        case inspect.LiteralType():
            return f"literal{sorted(map(str, kind.values))}"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _sprinkled(tree: Any, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(array_like=True) if isinstance(tree, list):
            types = [field.type for field in kind.fields]
            return [*map(_sprinkled, tree, types), *tree[len(types) :], "later"]
        case inspect.StructType() if isinstance(tree, dict):
            by_name = {field.encode_name: field.type for field in kind.fields}
            known = {
                name: _sprinkled(part, by_name[name]) if name in by_name else part
                for name, part in tree.items()
            }
            return {**known, **_LATER}
        case inspect.DataclassType() if isinstance(tree, dict):
            return {**tree, **_LATER}
        case inspect.UnionType() if isinstance(tree, dict):
            structs = [part for part in kind.types if isinstance(part, inspect.StructType)]
            tagged = [
                part
                for part in structs
                if part.tag_field is None or tree.get(part.tag_field) == part.tag
            ]
            return _sprinkled(tree, tagged[0]) if tagged else tree
        case inspect.UnionType() if isinstance(tree, list):
            lists = [
                part
                for part in kind.types
                if isinstance(part, inspect.VarTupleType | inspect.ListType | inspect.TupleType)
            ]
            return _sprinkled(tree, lists[0]) if lists else tree
        case inspect.VarTupleType() | inspect.ListType() if isinstance(tree, list):
            return [_sprinkled(part, kind.item_type) for part in tree]
        case inspect.TupleType() if isinstance(tree, list):
            return [_sprinkled(*both) for both in zip(tree, kind.item_types, strict=True)]
        case inspect.DictType() if isinstance(tree, dict):
            return {name: _sprinkled(part, kind.value_type) for name, part in tree.items()}
        case _:
            return tree
