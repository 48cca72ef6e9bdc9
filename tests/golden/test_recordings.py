"""Recordings of any version are read with their meaning; what this version writes is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden import examples, journals
from tests.golden import record as recorder
from tests.golden.kinds import KINDS, Kind

BY_NAME = {str(kind): kind for kind in KINDS}
FILES = sorted(recorder.RECORDED.glob("*/*.json"))
RECORDINGS = [file for file in FILES if file.parent.name != "journals"]
JOURNALS = sorted(journals.FOLDER.glob("*.sqlite.xz"))


def kind_of(file: Path) -> Kind:
    name = f"{file.parent.name}/{file.name.split('.')[0]}"
    assert name in BY_NAME, (
        f"{name} is gone, and was once written: whatever peers and disks still have of it must be "
        f"read; keep the type that {file.name} was recorded of"
    )
    return BY_NAME[name]


def entries(file: Path) -> list[dict[str, Any]]:
    document = json.loads(file.read_text(encoding="utf-8"))
    return [document["least"], document["whole"]]


def test_all_that_is_written_is_listed_once() -> None:
    assert len(BY_NAME) == len(KINDS) > 60


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_type_is_recorded_as_it_is_now(kind: Kind) -> None:
    known = recorder.recordings(kind)
    what = "has changed since it was recorded" if known else "is new and has no recording"
    assert recorder.path_of(kind) in known, (
        f"{kind} {what}: run `{recorder.COMMAND}` and commit the file that it adds. Leave the "
        "older ones as they are: nodes and disks have them."
    )


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_recording_is_read_as_it_was_meant(file: Path) -> None:
    kind = kind_of(file)
    for entry in entries(file):
        now = examples.decoded(kind.read(recorder.as_bytes(entry)))
        assert examples.says(entry["decoded"], now), (
            f"{file.name} is read as something else than it said: a field was renamed, retyped or "
            "got another default; add a new field instead"
        )


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_fields_of_a_later_version_are_ignored(file: Path) -> None:
    kind = kind_of(file)
    for entry in entries(file):
        if "text" not in entry or kind.strict:
            continue
        tree = part = json.loads(entry["text"])
        for step in kind.body[:-1]:
            part = part[step]
        if kind.body:
            part[kind.body[-1]] = examples.with_unknown_fields(part[kind.body[-1]], kind.type)
            tree["later"] = {"x": [1]}
        else:
            tree = examples.with_unknown_fields(tree, kind.type)
        assert "later" in json.dumps(tree)
        now = examples.decoded(kind.read(json.dumps(tree).encode()))
        assert examples.says(entry["decoded"], now)


def test_a_journal_of_this_layout_is_recorded() -> None:
    assert journals.path_of() in JOURNALS, (
        f"the journal has a new layout or schema: run `{recorder.COMMAND}` and commit what it adds"
    )


@pytest.mark.parametrize("file", JOURNALS, ids=lambda file: file.name)
def test_a_recorded_journal_leads_to_the_state_it_led_to(file: Path, tmp_path: Path) -> None:
    journals.unpack(file, tmp_path)
    expected = json.loads(journals.summary_of(file).read_text(encoding="utf-8"))
    assert examples.says(expected, json.loads(json.dumps(journals.summary(tmp_path))))


def test_the_recorded_life_has_jobs_in_every_phase() -> None:
    state = journals.life().state
    assert {job.phase.value for job in state.jobs.values()} >= {"queued", "held", "active", "ended"}
    assert {node.admin.value for node in state.nodes.values()} == {"active", "drained"}
    tasks = {
        task.state.value
        for job in state.jobs.values()
        for attempt in job.attempts
        for task in attempt.tasks
    }
    assert tasks >= {"assigned", "prepared", "started", "exited", "cleaned"}
    assert state.elastic


# --- the recorder itself --------------------------------------------------------------------------


class Old(msgspec.Struct):
    task: str
    count: int = 0


class New(msgspec.Struct):
    task: str
    count: int = 0
    more: str = ""


class Renamed(msgspec.Struct):
    task: str
    number: int = 0


class Retyped(msgspec.Struct):
    task: str
    count: str = ""


def of(kind: Any) -> Kind:
    return Kind("test", "thing", kind, msgspec.json.encode, msgspec.json.Decoder(kind).decode)


def test_only_what_is_new_is_recorded_and_what_is_old_stays(tmp_path: Path) -> None:
    assert recorder.record(of(Old), tmp_path)
    assert not recorder.record(of(Old), tmp_path)
    (first,) = recorder.recordings(of(Old), tmp_path)
    before = first.read_bytes()
    assert recorder.record(of(New), tmp_path)
    assert len(recorder.recordings(of(New), tmp_path)) == 2
    assert first.read_bytes() == before


@pytest.mark.parametrize(("later", "well"), [(New, True), (Renamed, False), (Retyped, False)])
def test_a_recording_read_with_another_meaning_fails(
    tmp_path: Path, later: Any, well: bool
) -> None:
    recorder.record(of(Old), tmp_path)
    (file,) = recorder.recordings(of(Old), tmp_path)
    assert examples.shape(Old) != examples.shape(later)

    def same(entry: dict[str, Any]) -> bool:
        try:
            now = examples.decoded(of(later).read(recorder.as_bytes(entry)))
        except msgspec.ValidationError:
            return False
        return examples.says(entry["decoded"], now)

    assert all(same(entry) for entry in entries(file)) is well


def test_a_mapping_is_compared_whole() -> None:
    assert not examples.says(examples.decoded({"a": "1"}), examples.decoded({"a": "1", "b": "2"}))
    assert not examples.says([1], [1, 2])
    assert not examples.says({"a": 1}, {"a": True})
