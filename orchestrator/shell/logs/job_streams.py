"""The log streams of one job, loaded from their files."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.shell.logs.layout import numbered, silent_ranks
from orchestrator.shell.logs.space import Usage
from orchestrator.shell.logs.stream_file import Late, StreamFile, StreamKey, key_of_file
from orchestrator.shell.logs.tombstone import read_removed

MARK_NAME: Final = "stored"


class CompleteMark(msgspec.Struct, frozen=True):
    """Content of the file that marks a task's logs as complete and on disk."""

    streams: int


class JobStreams:
    """All streams of a job.

    `next_seq` numbers the next arrival. `grew_at` is the time of the last arrival (monotonic
    seconds, -inf if this process has seen none). `late` holds the streams whose next bytes could
    not be stored. `removed` is set once retention has removed the logs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.streams: dict[StreamKey, StreamFile] = {}
        self.of_task: dict[tuple[int, int], list[StreamFile]] = {}  # by attempt and node
        self.of_attempt: Counter[int] = Counter()  # streams by attempt
        self.stored: set[tuple[int, int]] = set()
        self.late: dict[StreamKey, Late] = {}
        self.removed = read_removed(root)
        self.grew_at = -math.inf
        self.next_seq = 1
        self.usage = Usage()
        if self.removed is None:
            self._load()

    def _load(self) -> None:
        for attempt in numbered(self.root):
            self.stored.update((attempt, rank) for rank in silent_ranks(self.root / str(attempt)))
            for node_rank in numbered(self.root / str(attempt)):
                folder = self.root / str(attempt) / str(node_rank)
                for entry in os.scandir(folder):
                    key = key_of_file(attempt, node_rank, entry.name)
                    if key is not None:
                        self.add(StreamFile(key, folder / entry.name))
                    elif entry.name == MARK_NAME:
                        self.stored.add((attempt, node_rank))
        self.next_seq = 1 + max((stream.last_seq for stream in self.streams.values()), default=0)
        for stream in self.streams.values():
            if stream.repair(self.next_seq):
                self.next_seq += 1
            stream.release()
        self.usage = Usage.of((key[:2], s.stored) for key, s in self.streams.items())

    def add(self, stream: StreamFile) -> None:
        self.streams[stream.key] = stream
        self.of_task.setdefault(stream.key[:2], []).append(stream)
        self.of_attempt[stream.key.attempt] += 1

    @property
    def files(self) -> int:
        """Number of files: each stream has its data and its index."""
        return 2 * len(self.streams)

    def in_other_attempts(self, attempt: int) -> int:
        """Return the number of streams of all attempts but this one."""
        return len(self.streams) - self.of_attempt[attempt]

    def clear(self) -> None:
        """Forget all streams, because their files are removed."""
        self.streams, self.of_task, self.late = {}, {}, {}
        self.of_attempt.clear()
        self.usage = Usage()

    def take_seq(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1
