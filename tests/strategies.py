"""Values of the product's own types, for property tests: any that the decoder would let through."""

from __future__ import annotations

import enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

NUMBERS = st.sampled_from([0, 1, -1, 2, 7, 2**31, -(2**31), 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, -1.0, 1.5, 1e9, -1e9, 1e308, -1e308, 5e-324])
TEXTS = st.sampled_from(
    ["", "x", "n1", "10.0.0.1", "fe80::1", "1.1.0", "1.1.1", "2.1.0", "é\n#", "\x00", "a" * 300]
) | st.text(max_size=8)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type as a message declares it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return st.one_of(*(of_type(choice) for choice in arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*(of_type(part) for part in arguments))
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=2)
    hint = getattr(hint, "__supertype__", hint)  # a NewType
    simple = {int: NUMBERS, float: FLOATS, str: TEXTS, bool: st.booleans(), NoneType: st.none()}
    if hint in simple:
        found: st.SearchStrategy[Any] = simple[hint]
        return found
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    assert issubclass(hint, msgspec.Struct), hint
    return struct(hint)


def struct(kind: type[msgspec.Struct], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Structs of `kind`: each field left at its default, or of its type."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        name = field.name
        strategy = fixed[name] if name in fixed else of_type(hints[name])
        (required if field.required or field.name in fixed else optional)[field.name] = strategy
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))
