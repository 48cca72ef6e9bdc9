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
# Files of tools below a person's home, with names that are common elsewhere.
_SECRET_PATH: Final = re.compile(
    r"(.*/)?(\.aws/config|\.config/gcloud/.+|\.docker/config\.json|\.kube/config|\.ssh/config"
    r"|\.?huggingface/(stored_tokens|token))"
)
_NOT_SECRET: Final = re.compile(r".*\.(example|sample|template|dist)|.*\.pub", re.IGNORECASE)


def secrets(paths: Iterable[str]) -> list[str]:
    """Return the paths of files whose names are those of secrets."""
    return [path for path in paths if _is_secret(path)]


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
    everything = _below((path, 1) for path, _ in files)
    numbers = _below((path, 1) for path, _ in data)
    sizes = _below(data)
    found: list[DataFolder] = []
    for folder in sorted(numbers):  # each before those below it
        if found and folder.startswith(found[-1].path):
            continue
        number, size = numbers[folder], sizes[folder]
        if _is_much(number, size) and number >= _MOSTLY * everything[folder]:
            found.append(DataFolder(folder, number, size))
    return sorted(found, key=lambda each: -each.files)


def _below(numbers: Iterable[tuple[str, int]]) -> Counter[str]:
    """Return the sum of the numbers of files for each folder with those below it. A folder has a
    slash at its end; `./` has only the files that are in no other."""
    of: Counter[str] = Counter()
    for path, number in numbers:
        of[path.rpartition("/")[0]] += number
    levels: dict[int, Counter[str]] = {}
    for folder, number in of.items():
        levels.setdefault(folder.count("/"), Counter())[folder] = number
    made: Counter[str] = Counter()
    for depth in range(max(levels, default=0), -1, -1):
        for folder, number in levels.get(depth, Counter()).items():
            made[f"{folder}/" if folder else "./"] = number
            if depth:
                above = folder.rpartition("/")[0]
                levels.setdefault(depth - 1, Counter())[above] += number
    return made


def _is_data(path: str, size: int) -> bool:
    ending = path.rpartition(".")[2]
    # Most files, and a large one is named by itself.
    if ending == "py" or size > DATA_BYTES:
        return False
    return _DATA_SUFFIX.fullmatch(ending) is not None


def _is_much(files: int, size: int) -> bool:
    return files >= DATA_FILES or size > DATA_BYTES


def _is_secret(path: str) -> bool:
    if path.endswith(".py"):  # most files, and never a secret by its name
        return False
    name = path.rpartition("/")[2]
    if _SECRET.fullmatch(name) is not None:
        return _NOT_SECRET.fullmatch(name) is None
    return _SECRET_PATH.fullmatch(path) is not None
