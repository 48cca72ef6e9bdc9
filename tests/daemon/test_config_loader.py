"""Sources of a setting, their precedence, and the answer to a wrong value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.daemon.config_loader import load_config, settings
from muster.daemon.errors import ConfigError
from muster.protocol.tokens import TokenClass, make

PREFIX = "MUSTER_OVEN"


class Door(msgspec.Struct, frozen=True, kw_only=True):
    width_mm: Annotated[int, msgspec.Meta(ge=1)] = 600
    label: str = "front"


class Lamp(msgspec.Struct, frozen=True, kw_only=True):
    watts: int


class Oven(msgspec.Struct, frozen=True, kw_only=True):
    door: Door = Door()
    lamp: Lamp | None = None
    trays: int | Literal["auto"] = "auto"
    heat_s: float = 5.0
    dirty: bool = False
    manual: Path | None = None
    tags: dict[str, str] = {}
    menu: tuple[str, ...] = ()
    light: Literal["on", "off"] | None = None


def load(
    tmp_path: Path,
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Oven:
    file = None
    if text is not None:
        file = tmp_path / "oven.yaml"
        file.write_text(text, encoding="utf-8")
    return load_config(Oven, prefix=PREFIX, file=file, environ=environ or {}, flags=flags)


def refused(
    tmp_path: Path,
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ, flags)
    return str(caught.value)


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path) == Oven()
    assert load(tmp_path, "") == Oven()
    assert load(tmp_path, "# nothing\n") == Oven()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    text = "door: {width_mm: 1, label: file}\nheat_s: 1\n"
    environ = {"MUSTER_OVEN_DOOR_WIDTH_MM": "2", "MUSTER_OVEN_HEAT_S": "2"}
    oven = load(tmp_path, text, environ, {"heat_s": 3.0, "door.label": None})
    assert oven == Oven(door=Door(width_mm=2, label="file"), heat_s=3.0)


def test_text_from_the_environment_takes_the_type_of_its_setting(tmp_path: Path) -> None:
    oven = load(
        tmp_path,
        environ={
            "MUSTER_OVEN_DOOR_LABEL": "010",
            "MUSTER_OVEN_TRAYS": "4",
            "MUSTER_OVEN_DIRTY": "true",
            "MUSTER_OVEN_MANUAL": "/m",
            "MUSTER_OVEN_TAGS": "rack=a1,switch=leaf=3",
            "MUSTER_OVEN_LAMP_WATTS": "25",
            "UNRELATED": "x",
        },
    )
    assert oven == Oven(
        door=Door(label="010"),
        trays=4,
        dirty=True,
        manual=Path("/m"),
        tags={"rack": "a1", "switch": "leaf=3"},
        lamp=Lamp(watts=25),
    )


def test_flags_as_text_take_the_type_of_their_setting(tmp_path: Path) -> None:
    oven = load(tmp_path, flags={"trays": "auto", "door.width_mm": "7"})
    assert oven.door.width_mm == 7
    assert oven.trays == "auto"


@pytest.mark.parametrize("text", ["{}", "- {}", "tags: {{a: [{}]}}", "heat_s: {}", "trays: {}"])
def test_a_token_in_the_wrong_place_is_not_repeated(tmp_path: Path, text: str) -> None:
    """`tokens_file` for `token_file`, say: what is refused goes to the log of the machine."""
    secret = "0123456789abcdef" * 4
    said = refused(tmp_path, text.format(make(TokenClass.JOIN, "abcd1234", secret)))
    assert "muster_join_abcd1234_..." in said
    assert secret[:4] not in said


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "named.yaml"
    file.write_text("heat_s: 9\n")
    environ = {"MUSTER_OVEN_CONFIG": str(file)}
    assert load_config(Oven, prefix=PREFIX, environ=environ).heat_s == 9.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dor: {}", ["dor: no such setting, did you mean door?", "oven.yaml"]),
        ("door: {widht_mm: 3}", ["door.widht_mm: no such setting, did you mean width_mm?"]),
        ("zzz: 1", ["zzz: no such setting; there are door,"]),
        ("dor: {}\nheta_s: 1", ["dor:", "heta_s: no such setting, did you mean heat_s?"]),
        ("door: {width_mm: wide}", ["door.width_mm: expected int", "'wide'", "oven.yaml"]),
        ("door: {width_mm: 0}", ["door.width_mm: expected int >= 1", "the value is 0"]),
        ("door: {label: 10}", ["door.label: expected str, got int", "10", "put quotes around it"]),
        ("door: 3", ["door: expected object", "3"]),
        ("manual: 3", ["manual: expected", "3"]),
        ("manual: ''", ["manual: expected a path"]),
        ("trays: many", ["trays:", "'many'"]),
        ("lamp: {}", ["lamp.watts: is not set", "oven.yaml"]),
        ("menu: [a,\n 7]", ["menu[1]: expected str, got int", "the value is 7;", "line 1"]),
        ("tags: {a: 1}", ["tags", "expected str, got int"]),
        ("heat_s: 1\nheat_s: 2", ["line 2, column 1", "heat_s is set twice"]),
        ("door:\n  label: a\n  label: b", ["line 3", "label is set twice"]),
        ("on: 1", ["line 1", "the key True is not a word"]),
        ("door: [", ["line 1"]),
        ("\t- x: {", ["line 1"]),
        ("- a\n- b", ["expected settings", "['a', 'b']"]),
        ("just words", ["expected settings", "'just words'"]),
        ("heat_s: !!python/object/apply:os.getpid []", ["line 1", "could not determine"]),
        ("a: &a [*a]", ["a: no such setting"]),
        ("[" * 5000, ["nested too deeply"]),
        ("heat_s: 1\n---\nheat_s: 2", ["line 2", "document"]),
    ],
)
def test_a_bad_file_is_answered_in_words(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refused(tmp_path, text)
    for word in words:
        assert word in message
    assert "oven.yaml" in message


def test_words_that_yaml_takes_for_booleans_are_text_where_text_is_wanted(tmp_path: Path) -> None:
    text = "{light: off, door: {label: No}, tags: {a: yes, b: ON}, menu: [on, x], dirty: yes}"
    assert load(tmp_path, text) == Oven(
        light="off",
        door=Door(label="No"),
        tags={"a": "yes", "b": "ON"},
        menu=("on", "x"),
        dirty=True,
    )


@pytest.mark.parametrize("text", ["light: true", "light: yes", "trays: off", "heat_s: on"])
def test_such_a_word_is_refused_where_it_is_none_of_the_choices(tmp_path: Path, text: str) -> None:
    assert text.partition(":")[0] in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# a\ntrays: 1\n\ndor: {}\n", 4),
        ("door:\n  label: a\n  widht_mm: 3\n", 3),
        ("door: {label: a,\n  width_mm: wide}", 2),
        ("trays: 1\ntags:\n  a: b\n  c: 1\n", 2),
        ("trays: 1\ndoor: 3\n", 2),
    ],
)
def test_the_line_of_a_wrong_setting_is_reported(tmp_path: Path, text: str, line: int) -> None:
    assert refused(tmp_path, text).endswith(f"(from {tmp_path / 'oven.yaml'}, line {line})")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufefftrays: 3\r\nheat_s: 2\r\n").trays == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such configuration file"):
        load_config(Oven, prefix=PREFIX, file=tmp_path / "none.yaml", environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(Oven, prefix=PREFIX, file=tmp_path, environ={})
    (tmp_path / "latin").write_bytes(b"door: {label: caf\xe9}\n")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(Oven, prefix=PREFIX, file=tmp_path / "latin", environ={})
    with pytest.raises(ConfigError, match="larger than"):
        load_config(Oven, prefix=PREFIX, file=Path("/dev/zero"), environ={})


def test_a_wrong_variable_is_named_and_not_the_file(tmp_path: Path) -> None:
    environ = {"MUSTER_OVEN_DOOR_WIDTH_MM": "wide"}
    message = refused(tmp_path, "heat_s: 1", environ)
    assert "door.width_mm: expected int" in message
    assert "'wide'" in message
    assert "(from MUSTER_OVEN_DOOR_WIDTH_MM)" in message


def test_a_wrong_flag_is_named(tmp_path: Path) -> None:
    message = refused(tmp_path, flags={"door.width_mm": 0})
    assert "(from --door-width-mm)" in message


def test_an_unknown_variable_of_ours_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, environ={"MUSTER_OVEN_HEATS": "1"})
    assert message.startswith(
        "MUSTER_OVEN_HEATS: no such setting, did you mean MUSTER_OVEN_HEAT_S?"
    )


def test_a_variable_inside_what_the_file_made_no_group_is_explained(tmp_path: Path) -> None:
    message = refused(tmp_path, "door: 3", {"MUSTER_OVEN_DOOR_LABEL": "x"})
    assert "door: expected a group of settings, got 3" in message


def test_a_map_in_a_variable_needs_equals_signs(tmp_path: Path) -> None:
    message = refused(tmp_path, environ={"MUSTER_OVEN_TAGS": "a=1,b"})
    assert "tags: expected k=v,k=v, got 'b' (from MUSTER_OVEN_TAGS)" in message


def test_settings_are_listed_with_path_and_variable() -> None:
    assert [(s.path, s.variable) for s in settings(Oven, PREFIX)][:3] == [
        ("door.width_mm", "MUSTER_OVEN_DOOR_WIDTH_MM"),
        ("door.label", "MUSTER_OVEN_DOOR_LABEL"),
        ("lamp.watts", "MUSTER_OVEN_LAMP_WATTS"),
    ]


def loads_or_says_why(file: Path) -> None:
    why = ""
    try:
        load_config(Oven, prefix=PREFIX, file=file, environ={})
    except ConfigError as error:
        why = str(error)
    assert not why or str(file) in why


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*Oven.__struct_fields__, "label", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(tree=YAML_VALUES)
def test_any_yaml_gives_a_config_or_a_config_error(
    tree: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(msgspec.yaml.encode(tree))
    loads_or_says_why(file)


@given(raw=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_config_or_a_config_error(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(raw)
    loads_or_says_why(file)
