"""Load one frozen, checked configuration struct from a YAML file, the environment and flags.

A flag overrides the environment, which overrides the file, which overrides the default. Each error
names the path (`ports.first`), the wrong value and its origin.
"""

import difflib
import enum
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import yaml

from muster.daemon.errors import ConfigError
from muster.protocol.tokens import without_secrets

_T = TypeVar("_T", bound=msgspec.Struct)

# The variable that names the file, so it is not a setting:
# MUSTER_AGENT_CONFIG=/etc/muster/agent.yaml.
FILE_VARIABLE: Final = "CONFIG"
_FILE_BYTES_MAX: Final = 1 << 20
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_BOOL_TAG: Final = "tag:yaml.org,2002:bool"
# YAML 1.1 reads them as booleans. YAML 1.2, and most authors, mean text.
_ABSENT: Final = object()
_SWITCHES: Final = frozenset({"on", "off", "yes", "no"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A leaf of a configuration: its path, type, and the environment variable that sets it."""

    path: str
    type: Any
    variable: str


def load_config(
    kind: type[_T],
    *,
    prefix: str,
    file: Path | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    moved: Mapping[str, str] | None = None,
) -> _T:
    """Read a configuration of type `kind`.

    `prefix` is that of its environment variables: with MUSTER_AGENT, `ports.first` is
    MUSTER_AGENT_PORTS_FIRST. Maps are written k=v,k=v, lists a,b. `file` defaults to the variable
    <prefix>_CONFIG, then to no file. `flags` maps paths (`ports.first`) to values. None means that
    the flag was not given; a string is parsed like the variable. `moved` says, for each setting of
    an earlier release, what to write instead. Raises ConfigError.
    """
    if file is None and environ.get(f"{prefix}_{FILE_VARIABLE}"):
        file = Path(environ[f"{prefix}_{FILE_VARIABLE}"])
    tree: dict[str, Any] = {} if file is None else read_yaml(file, kind)
    origin = {"": "the defaults" if file is None else str(file)}
    _refuse_unknown(kind, tree, file, moved or {})
    known = {setting.path: setting for setting in settings(kind, prefix)}
    for setting, text in _from_environ(known, prefix, environ):
        _put(tree, setting, _from_text(setting, text, setting.variable), setting.variable)
        origin[setting.path] = setting.variable
    for path, value in (flags or {}).items():
        if value is None:
            continue
        setting = known[path]
        flag = "--" + path.replace(".", "-").replace("_", "-")
        _put(
            tree,
            setting,
            _from_text(setting, value, flag) if isinstance(value, str) else value,
            flag,
        )
        origin[path] = flag
    try:
        return msgspec.convert(tree, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, tree, origin, file)) from error


def written_settings(
    kind: type[msgspec.Struct], *, prefix: str, file: Path | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """The settings that the file or the environment sets, by path, each with its origin: the file,
    or the variable. Raises ConfigError.
    """
    if file is None and environ.get(f"{prefix}_{FILE_VARIABLE}"):
        file = Path(environ[f"{prefix}_{FILE_VARIABLE}"])
    tree = {} if file is None else read_yaml(file, kind)
    found = {}
    for setting in settings(kind, prefix):
        value: object = tree
        for name in setting.path.split("."):
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if setting.variable in environ:
            found[setting.path] = setting.variable
        elif value is not _ABSENT:
            found[setting.path] = str(file)
    return found


def settings(kind: type[msgspec.Struct], prefix: str, above: str = "") -> Iterator[Setting]:
    """All settings of a configuration type, depth first, in the order of their declaration."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        path = f"{above}{name}"
        inner = _struct_in(hint)
        if inner is not None:
            yield from settings(inner, prefix, f"{path}.")
        else:
            yield Setting(path, hint, f"{prefix}_{path.replace('.', '_').upper()}")


def read_yaml(file: Path, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The mapping in a YAML file for a configuration of type `kind`. Returns {} for an empty file.

    Where `kind` has text or a choice of words, `on`, `off`, `yes` and `no` are text. A value that
    `kind` declares as Any is the text as written, whatever its YAML type. Raises ConfigError.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such configuration file") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    if len(raw) > _FILE_BYTES_MAX:
        raise ConfigError(
            f"{file}: larger than {_FILE_BYTES_MAX} bytes, so it is not a configuration file"
        )
    try:
        tree = parse_yaml(raw.decode("utf-8"), kind)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{file}: {_yaml_problem(error)}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: expected settings (`name: value` lines), got {_show(tree)}")
    return tree


def parse_yaml(text: str, kind: type[msgspec.Struct]) -> object:
    """Parse the YAML text of a configuration as `read_yaml` does. Returns None for an empty one.
    Raises YAMLError or ValueError.
    """
    loader = _StrictLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _keep_text(root, kind)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _keep_text(node: yaml.Node, hint: Any) -> None:
    """Tag scalars below `node` as text where `hint` expects text and YAML would read
    another type.
    """
    if _has_any(hint):
        _leave_untyped(node)
        return
    choices = list(_choices(hint))
    match node:
        case yaml.ScalarNode(tag=tag, value=value):
            if tag == _BOOL_TAG and value.lower() in _SWITCHES and _takes_text(choices):
                node.tag = _TEXT_TAG
        case yaml.SequenceNode(value=items):
            for choice in choices:
                if get_origin(choice) is tuple:
                    for item in items:
                        _keep_text(item, get_args(choice)[0])
        case yaml.MappingNode(value=pairs):
            for choice in choices:
                for key, value in pairs:
                    below = _hint_below(choice, key.value)
                    if below is not None:
                        _keep_text(value, below)
        case _:
            pass


def _choices(hint: Any) -> Iterator[Any]:
    """The possible types of a value."""
    if get_origin(hint) is Annotated:
        yield from _choices(get_args(hint)[0])
    elif get_origin(hint) in {Union, UnionType}:
        for choice in get_args(hint):
            yield from _choices(choice)
    else:
        yield hint


def _takes_text(choices: list[Any]) -> bool:
    return bool not in choices and any(
        choice is str
        or get_origin(choice) is Literal
        or (isinstance(choice, type) and issubclass(choice, enum.Enum))
        for choice in choices
    )


def _hint_below(choice: Any, name: object) -> Any:
    """The type of the value under a name. Returns None for an unknown name."""
    if get_origin(choice) is dict:
        return get_args(choice)[1]
    if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
        return get_type_hints(choice, include_extras=True).get(str(name))
    return None


def _leave_untyped(top: yaml.Node) -> None:
    """Tag all values below a node as text, except empty ones."""
    waiting, seen = [top], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        match node:
            case yaml.ScalarNode() if node.value or node.style:
                node.tag = _TEXT_TAG
            case yaml.SequenceNode():
                waiting.extend(node.value)
            case yaml.MappingNode():
                waiting.extend(value for _, value in node.value)
            case _:
                pass


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that also refuses duplicate keys. YAML would keep the last, while readers see
    the first.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {_show(key)} is not a word; put quotes around it",
                    key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is set twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())


def _from_environ(
    known: Mapping[str, Setting], prefix: str, environ: Mapping[str, str]
) -> Iterator[tuple[Setting, str]]:
    by_variable = {setting.variable: setting for setting in known.values()}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(f"{prefix}_") or variable == f"{prefix}_{FILE_VARIABLE}":
            continue
        if variable not in by_variable:
            raise ConfigError(
                f"{variable}: no such setting{_did_you_mean(variable, by_variable)}; unset it"
            )
        yield by_variable[variable], text


def _from_text(setting: Setting, text: str, origin: str) -> object:
    """Parse text by the type of its setting. An invalid text is returned unchanged, for the later
    check.
    """
    if get_origin(setting.type) is dict:
        pairs = [pair.partition("=") for pair in text.split(",") if pair]
        for key, equals, _ in pairs:
            if not equals:
                raise ConfigError(
                    f"{setting.path}: expected k=v,k=v, got {_show(key)} (from {origin})"
                )
        return {key: value for key, _, value in pairs}
    if get_origin(setting.type) is tuple:
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return msgspec.to_builtins(
            msgspec.convert(text, setting.type, strict=False, dec_hook=_decode), enc_hook=str
        )
    except msgspec.ValidationError:
        return text


def _put(tree: dict[str, Any], setting: Setting, value: object, origin: str) -> None:
    *groups, last = setting.path.split(".")
    for depth, group in enumerate(groups):
        below = tree.get(group)
        if below is None:
            below = tree[group] = {}
        if not isinstance(below, dict):
            path = ".".join(groups[: depth + 1])
            raise ConfigError(
                f"{path}: expected a group of settings, got {_show(below)}; {origin} is in it"
            )
        tree = below
    tree[last] = value


def _refuse_unknown(
    kind: type[msgspec.Struct],
    tree: Mapping[str, Any],
    file: Path | None,
    moved: Mapping[str, str],
) -> None:
    unknown = [(path, moved.get(path, why)) for path, why in _unknown(kind, tree)]
    if unknown:
        texts = (f"{path}: {why} (from {_place(file, path)})" for path, why in unknown)
        raise ConfigError("; ".join(texts))


def _unknown(
    kind: type[msgspec.Struct], tree: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, str]]:
    """The path of each unknown setting, with a message."""
    hints = get_type_hints(kind, include_extras=True)
    for name, value in tree.items():
        if name not in hints:
            yield f"{above}{name}", f"no such setting{_did_you_mean(name, hints)}"
            continue
        inner = _struct_in(hints[name])
        if inner is not None and isinstance(value, Mapping):
            yield from _unknown(inner, value, f"{above}{name}.")


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def _place(file: Path | None, path: str) -> str:
    """The file and line of a setting, or of its nearest parent in the file.

    Parses the file again, because line numbers are needed only for errors.
    """
    try:
        with open(file or "") as stream:
            node = yaml.compose(stream.read(_FILE_BYTES_MAX), _StrictLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return str(file)
    line = None
    for name in path.split("."):
        found = [pair for pair in getattr(node, "value", ()) if _is_pair(pair, name)]
        if not found:
            break
        key, node = found[0]
        line = key.start_mark.line + 1
    return str(file) if line is None else f"{file}, line {line}"


def _is_pair(item: object, name: str) -> bool:
    return isinstance(item, tuple) and item[0].value == name


def _explain(
    error: msgspec.ValidationError, tree: object, origin: Mapping[str, str], file: Path | None
) -> str:
    """Reword msgspec's `Expected int, got str - at $.ports.first`, with the value and
    its origin.
    """
    text, _, where = str(error).partition(" - at `$")
    path = re.sub(r"\[\.\.\.\]", "", where.removeprefix(".").rstrip("`"))
    text = text.replace("`", "")
    text = text[:1].lower() + text[1:]
    missing = re.fullmatch(r"object missing required field (\w+)", text)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return f"{path}: is not set, and has no default (looked in {origin['']})"
    setting = re.sub(r"\[\d+\]", "", path)
    came_from = origin.get(setting)
    if came_from is None:
        came_from = origin[""] if file is None or not path else _place(file, setting)
    value = tree
    for part in re.findall(r"[^.\[\]]+", path):
        value = _below(value, part)
    shown = f", the value is {_show(value)}" if path else ""
    quotes = (
        "; put quotes around it" if re.match(r"expected str.*, got (int|float|bool)", text) else ""
    )
    text = f"{path}: {text}{shown}{quotes} (from {came_from})".removeprefix(": ")
    return without_secrets(text)


def _below(value: object, part: str) -> object:
    match value:
        case dict():
            return value.get(part)
        case list():
            return value[int(part)]
        case _:
            return None


def _show(value: object) -> str:
    # A token may stand in place of another value, and messages about that are logged.
    text = without_secrets(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        if not isinstance(value, str):
            raise TypeError(f"Expected `str` (a path), got `{type(value).__name__}`")
        if not value or "\0" in value:
            raise ValueError("Expected a path, got an empty one")
        return Path(value)
    raise NotImplementedError(kind)


def _has_any(hint: Any) -> bool:
    return hint is Any or any(map(_has_any, get_args(hint)))


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct type of a field, also of an optional one. Returns None if the field holds no
    struct.
    """
    choices = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            return choice
    return None
