"""Files that look like secrets or data sets, named before they are sent. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

DATA_BYTES: Final = 50 << 20
"""A larger file is hardly code."""
DATA_FILES: Final = 500
"""A folder with so many images, recordings or arrays is hardly code."""
_DATA_SUFFIX: Final = re.compile(
    r"arrow|avi|bin|bmp|csv|dcm|feather|flac|gif|gz|h5|hdf5|jpe?g|jsonl|lmdb|m4a|mdb|mov|mp[34]"
    r"|nii|np[yz]|ogg|parquet|p[gnp]m|pkl|png|pth?|rec|safetensors|tar|tfrecords?|tgz|tiff?|tsv"
    r"|wav|web[mp]|zip|zst",
    re.IGNORECASE,
)
_MOSTLY: Final = 0.9
_SECRET: Final = re.compile(
    r"(\.env(\..*)?|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|keytab)|credentials(\..*)?"
    r"|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.git-credentials|.*service[-_]?account.*\.json"
    r"|secrets?\.(json|ya?ml|toml|env|txt))",
    re.IGNORECASE,
)
_NOT_SECRET: Final = re.compile(r".*\.(example|sample|template|dist)|.*\.pub", re.IGNORECASE)


def secrets(paths: Iterable[str]) -> list[str]:
    """Return the paths of files whose names are those of secrets."""
    return [path for path in paths if _is_secret(path.rpartition("/")[2])]


def data_sets(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files that are large for code, given with their sizes, the largest first."""
    large = [(path, size) for path, size in files if size > DATA_BYTES]
    return sorted(large, key=lambda each: -each[1])


class DataFolder(NamedTuple):
    """A folder that is mostly data: its path with a slash at its end, the data files in it and
    below, and their bytes."""

    path: str
    files: int
    bytes: int


def data_folders(files: Sequence[tuple[str, int]]) -> list[DataFolder]:
    """Return the folders that hold many files of data, given all files with their sizes; the
    largest number first. Of a folder and those below it, only the first is named."""
    data = [(path, size) for path, size in files if _is_data(path, size)]
    if not _is_much(len(data), sum(size for _, size in data)):
        return []
    everything = Counter(folder for path, _ in files for folder in _folders(path))
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path, size in data:
        for folder in _folders(path):
            numbers[folder] += 1
            sizes[folder] += size
    found: dict[str, DataFolder] = {}
    for folder in sorted(numbers):  # each before those below it
        number, size = numbers[folder], sizes[folder]
        if _is_much(number, size) and number >= _MOSTLY * everything[folder]:
            above = folder.rstrip("/")
            if found.keys().isdisjoint(_folders(above)):
                found[folder] = DataFolder(folder, number, size)
    return sorted(found.values(), key=lambda each: -each.files)


def _is_data(path: str, size: int) -> bool:
    ending = path.rpartition(".")[2]
    # Most files, and a large one is named by itself.
    if ending == "py" or size > DATA_BYTES:
        return False
    return _DATA_SUFFIX.fullmatch(ending) is not None


def _is_much(files: int, size: int) -> bool:
    return files >= DATA_FILES or size > DATA_BYTES


def _folders(path: str) -> list[str]:
    """Return the folders above a path, each with a slash at its end."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) + "/" for end in range(1, len(parts) + 1)] or ["./"]


def _is_secret(name: str) -> bool:
    if name.endswith(".py"):  # most files, and never a secret by its name
        return False
    return _SECRET.fullmatch(name) is not None and _NOT_SECRET.fullmatch(name) is None
