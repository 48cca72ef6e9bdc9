"""Read one flight recorder dump and print one line of JSON; a program of its own, standard library
only.

A pickle can make its reader call anything. This reader accepts only plain data, and runs with tight
limits on time, memory and files. Its parent trusts only the types of its output.
"""

import io
import json
import pickle  # noqa: TID251 - by a reader that finds no class, in a process to throw away
import resource
import sys

CPU_S = 3
MEMORY_BYTES = 1 << 30
TEXT_MAX = 300


class Plain(pickle.Unpickler):
    """Unpickles lists, dicts, text and numbers: data that needs no global names."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: object) -> object:  # noqa: ARG002
        raise pickle.UnpicklingError("it refers to something outside")


def summary(dump: object) -> dict[str, object]:
    """The last collective that was enqueued, and the numbers of enqueued and completed ones."""
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        return {"rank": 0, "problem": "it has no entries"}
    known = [entry for entry in entries if isinstance(entry, dict)]
    enqueued = max((_number(entry.get("collective_seq_id")) for entry in known), default=0)
    done = [e for e in known if e.get("state") == "completed" or e.get("retired") is True]
    completed = max((_number(entry.get("collective_seq_id")) for entry in done), default=0)
    last = ""
    if known:
        entry = known[-1]
        name, state = entry.get("profiling_name"), entry.get("state")
        sizes = entry.get("input_sizes")
        last = f"{name} number {enqueued} {sizes}: {state}"[:TEXT_MAX]
    return {"rank": 0, "enqueued": enqueued, "completed": completed, "last": last}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = int(sys.argv[1])
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        found: dict[str, object] = {"rank": 0, "problem": f"it has more than {most} bytes"}
    else:
        try:
            found = summary(Plain(io.BytesIO(data)).load())
        except Exception as error:  # noqa: BLE001 - whatever is in it, it is the job's
            found = {"rank": 0, "problem": f"it cannot be read: {error}"[:TEXT_MAX]}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
