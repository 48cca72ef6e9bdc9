"""`muster diff`: two jobs, and only what is another in one."""

import json

from muster.http import views as api
from muster.protocol.states import JobState
from tests.cli.conftest import Run
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view


def put(fake: FakeCoordinator, job: int, spec: dict[str, object], env: dict[str, str]) -> None:
    view = job_view(job, spec={"run": ["train.py"], "nodes": 2, **spec})
    fake.put(ended(view, JobState.SUCCEEDED, 0) if job == 41 else view)
    node = api.NodeEnvironment("gpu-01", 0, {"MUSTER_JOB_ID": str(job), "MASTER_PORT": "1", **env})
    fake.script.environments[job] = api.EnvironmentView(job, 1, (node,))


def test_only_what_differs_is_shown(run: Run, fake: FakeCoordinator) -> None:
    one, two = ({"NCCL_DEBUG_FILE": f"/var/lib/tasks/{job}.1.0/nccl/%h"} for job in (41, 42))
    env = {"A": "1", "NCCL_DEBUG": "INFO"}
    put(fake, 41, {"stop": {"grace": "30s"}, "env": {"A": "1"}}, {**env, **one})
    put(fake, 42, {"stop": {"grace": "5m"}, "env": {"A": "2"}, "python": "/v"}, {"A": "2", **two})
    found = json.loads(run("diff", "41", "42", "--json").stdout)
    assert found["jobs"] == [41, 42]
    differences = {d["what"]: (d["first"], d["second"]) for d in found["differences"]}
    assert differences.pop("ran")[1] == ""
    assert differences == {
        "stop.grace": ("30s", "5m"),
        "env.A": ("1", "2"),
        "python": ("", "/v"),
        "env.NCCL_DEBUG": ("INFO", ""),
        "state": ("SUCCEEDED", "RUNNING"),
        "exit code": ("0", ""),
    }
    fake.script.environments[41] = api.EnvironmentView(41, None, ())
    again = json.loads(run("diff", "41", "42", "--json").stdout)["differences"]
    assert "env.NCCL_DEBUG" not in {d["what"] for d in again}, "of one that never ran, nothing"
    shown = run("diff", "41", "42")
    assert shown.returncode == 0
    assert [line.split() for line in shown.stdout.decode().splitlines()][:3] == [
        ["WHAT", "JOB", "41", "JOB", "42"],
        ["stop.grace", "30s", "5m"],
        ["env.A", "1", "2"],
    ]


def test_a_job_does_not_differ_from_itself(run: Run, fake: FakeCoordinator) -> None:
    put(fake, 42, {}, {})
    done = run("diff", "42", "last")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"muster: jobs 42 and 42 do not differ\n"
