"""The examples of docs/reference/client.md run in their order against a coordinator."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster import client as package
from muster.protocol.states import JobState
from tests.client.fake_coordinator import TOKEN, Script, ended, job_view, record, running

TREE = Path(__file__).resolve().parents[2]
PAGE = (TREE / "docs/reference/client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = (
    "42 QUEUED\n",
    "FAILED: rank 0 exited with 3\n",
    "loss 0.5\nended: FAILED\n",
    "[3, 3, 3]\n",
    "",
)


@pytest.mark.parametrize(("example", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)))
def test_an_example_runs_and_prints_what_it_says(
    example: str, printed: str, tmp_path: Path
) -> None:
    failed = ended(job_view(name="sft"), JobState.FAILED, 3, "rank 0 exited with 3")
    jobs = {} if "42" in printed else dict.fromkeys((42, 43, 44), failed)
    with running(Script(jobs=jobs, logs=[record(1, "loss 0.5\n")])) as fake:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            env={
                "PYTHONPATH": str(TREE),
                "HOME": str(tmp_path),
                "MUSTER_URL": fake.url,
                "MUSTER_TOKEN": TOKEN,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_every_error_is_in_the_table() -> None:
    for name in package.__all__:
        if name.endswith("Error") and name != "ClientError":
            assert f"`{name}`" in PAGE.rpartition("| error | when |")[2]
