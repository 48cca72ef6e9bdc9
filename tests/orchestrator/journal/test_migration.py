"""A journal of an older layout is taken over whole or not at all, at whatever instant it ends."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.facts.jobs import SCHEMA
from orchestrator.journal.backup import back_up, examined_copy, restore
from orchestrator.journal.errors import CorruptJournalError, NewerJournalError
from orchestrator.journal.journal import Journal
from orchestrator.journal.records import checksum
from orchestrator.journal.schema import FILE_NAME, LAYOUT
from tests.golden import journals
from tests.orchestrator.journal.killed import FAR, killed_at
from tests.orchestrator.journal.next_layout import NEXT, upgrade_to_next


def journal_of(folder: Path) -> dict[str, Any]:
    """Make a journal; returns what it says."""
    cluster = journals.life()
    with closing(Journal.open(folder)) as journal:
        journal.begin_epoch()
        journal.append(cluster.rows)
    return journals.summary(folder)


def layout_of(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def test_a_migration_that_is_killed_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    before = journal_of(made)
    upgrade_to_next(monkeypatch)
    kept = f"{FILE_NAME}.layout-{LAYOUT}"
    layouts = []
    for moment in range(1, FAR):
        folder = tmp_path / f"at-{moment}"
        shutil.copytree(made, folder)
        killed = killed_at(moment, lambda folder=folder: Journal.open(folder).close())  # type: ignore[misc]
        crashed = tmp_path / f"crashed-{moment}"
        shutil.copytree(folder, crashed)
        layouts.append(layout_of(crashed / FILE_NAME))
        if layouts[-1] == NEXT or (folder / kept).exists():
            # The copy under this name is complete at every moment at which it exists.
            assert layout_of(crashed / kept) == LAYOUT
        assert journals.summary(folder) == before
        assert layout_of(folder / kept) == LAYOUT
        shutil.rmtree(folder)
        shutil.rmtree(crashed)
        if not killed:
            break
    assert set(layouts) == {LAYOUT, NEXT}
    assert len(layouts) > 20, "that many moments were tried"
    assert layouts == sorted(layouts)


def test_a_restore_that_is_killed_leaves_the_old_the_new_or_a_refusal(tmp_path: Path) -> None:
    """Never an empty start: between the two renames a start names the way out."""
    made = tmp_path / "made"
    with closing(Journal.open(made)) as journal:
        journal.begin_epoch()
        journal.append(journals.life().rows[:12])
        back_up(made, tmp_path / "backup")
        journal.append(journals.life().rows[12:])
    jobs, refusals = [], []
    for moment in range(1, FAR):
        folder = tmp_path / f"at-{moment}"
        shutil.copytree(made, folder)
        (folder / "logs" / "1").mkdir(parents=True)
        killed = killed_at(moment, lambda folder=folder: restore(folder, tmp_path / "backup", 3))  # type: ignore[misc]
        try:
            jobs.append(len(journals.summary(folder)["jobs"]))
        except CorruptJournalError as error:
            refusals.append(str(error))
            restore(folder, tmp_path / "backup", 3)
            assert len(journals.summary(folder)["jobs"]) == 1
        shutil.rmtree(folder)
        if not killed:
            break
    assert set(jobs) == {10, 1}
    assert refusals
    assert all("was interrupted" in said for said in refusals)
    assert jobs[-1] == 1


def test_the_way_back_from_a_newer_release_is_reported_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal_of(tmp_path)
    with monkeypatch.context() as patch:
        upgrade_to_next(patch)
        Journal.open(tmp_path).close()
    kept = tmp_path / f"{FILE_NAME}.layout-{LAYOUT}"
    raw = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(NewerJournalError, match="start the version that wrote it") as refused:
        Journal.open(tmp_path)
    assert f"muster restore {kept}" in str(refused.value)
    assert (tmp_path / FILE_NAME).read_bytes() == raw
    with examined_copy(kept) as found:
        assert len({r.fact.job for r in found if hasattr(r.fact, "job")}) == len(before["jobs"])
    restore(tmp_path, kept, before["next_job"])
    now = journals.summary(tmp_path)
    assert now["jobs"] == before["jobs"]
    assert now["next_job"] > before["next_job"], "numbers that came after it are not given again"


@pytest.mark.parametrize(
    ("schema", "body", "said"),
    [
        (SCHEMA, b'{"type":"JobPraised","job":1}', "record 4 of the journal is a JobPraised"),
        (SCHEMA + 1, b"{}", f"record 4 of the journal has schema {SCHEMA + 1}"),
    ],
)
def test_a_fact_of_a_later_release_is_no_damage(
    tmp_path: Path, schema: int, body: bytes, said: str
) -> None:
    """A downgrade within one layout is refused as such, and no backup is asked for."""
    with closing(Journal.open(tmp_path)) as journal:
        journal.append(journals.life().rows[:3])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        row = (4, 7.0, schema, "JobPraised", 1, body)
        database.execute("INSERT INTO fact VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, checksum(*row)))
        database.commit()
    with pytest.raises(NewerJournalError, match=said):
        journals.summary(tmp_path)
