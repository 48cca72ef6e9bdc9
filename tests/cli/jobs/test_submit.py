"""`muster submit`: checked here, handed over once, the id alone on stdout."""

import json
import signal
from pathlib import Path

import pytest

from muster.http import views as api
from muster.protocol.states import JobState, TaskState
from muster.protocol.timestamp import timestamp
from tests.cli.conftest import DEADLINE_S, Run, Start
from tests.client.fake_coordinator import FakeCoordinator, ended, job_view, record

ELSEWHERE = "/proc/nowhere"
"""A home directory that is not the current folder."""


def mapping_of(fake: FakeCoordinator) -> dict[str, object]:
    ((_, mapping),) = fake.script.submitted.values()
    assert isinstance(mapping, dict)
    return mapping


def test_the_id_is_alone_on_stdout(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py --lr 1\nworkdir: /data/x\n")
    done = run("submit", "-f", "job.yaml")
    assert (done.returncode, done.stdout) == (0, b"42\n")
    assert done.stderr == b"muster: submitted job 42 (train), QUEUED\n"
    assert mapping_of(fake) == {"run": "train.py --lr 1", "workdir": "/data/x"}


def test_a_time_limit_that_a_default_gave_is_printed(run: Run, fake: FakeCoordinator) -> None:
    for number in (42, 43):
        fake.script.jobs[number] = job_view(number, time_limit_s=86400.0, pool="lab")
    assert run("submit", "--", "train.py").stderr.decode().splitlines()[-1:] == [
        "muster: its time limit is 1d, the default of pool lab (another: --time-limit)"
    ]
    assert b"time limit" not in run("submit", "--time-limit", "2h", "--", "train.py").stderr


def test_options_change_what_the_file_says(run: Run, fake: FakeCoordinator, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nnum_nodes: 2\nenv: {A: '1'}\n")
    arguments = "--nodes 4 --set retry.user=2 -e B=2 -e C --name n --time-limit 2h --priority 60"
    done = run("submit", "-f", "job.yaml", *arguments.split(), C="from me")
    assert done.returncode == 0, done.stderr
    assert mapping_of(fake) == {
        "run": "train.py",
        "nodes": "4",
        "retry": {"user": "2"},
        "env": {"A": "1", "B": "2", "C": "from me"},
        "name": "n",
        "time_limit": "2h",
        "priority": "60",
    }


def test_short_options(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "-N", "2", "-g", "H100:4", "-e", "A=1", "--", "train.py")
    assert done.returncode == 0, done.stderr
    mapping = mapping_of(fake)
    assert mapping["nodes"] == "2"
    assert mapping["resources"] == {"gpu": "H100:4"}
    assert mapping["env"] == {"A": "1"}
    refused = run("submit", "-i", "pytorch:latest", "--", "train.py")
    assert refused.returncode == 2
    assert b"image" in refused.stderr
    assert b"not supported yet" in refused.stderr


def test_a_variable_without_effect_is_named(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "-e", "NCCL_IB_CUDA_SUPPORT=1", "--", "train.py")
    assert done.stdout == b"42\n"
    assert b"env.NCCL_IB_CUDA_SUPPORT has no effect" in done.stderr


def test_a_variable_goes_before_the_file_and_an_option_before_it(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\npool: a\ntime: 1h\n")
    env = {"MUSTER_SUBMIT_POOL": "b", "MUSTER_SUBMIT_TIME_LIMIT": "2h"}
    assert run("submit", "-f", "job.yaml", "--pool", "c", **env).returncode == 0
    assert mapping_of(fake) == {"run": "train.py", "pool": "c", "time_limit": "2h"}


def test_the_folder_of_a_bare_command_travels(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    command = ("python", "train.py", "--nodes", "7")
    done = run("submit", "--nodes", "2", "--", *command, HOME=ELSEWHERE)
    assert done.stdout == b"42\n", done.stderr
    (sha256,) = fake.script.bundles
    assert mapping_of(fake) == {
        "run": ["train.py", "--nodes", "7"],
        "nodes": "2",
        "workdir": {"bundle": sha256},
    }
    assert f"code: {tmp_path} (1 file, 1 B) travels".encode() in done.stderr


def test_a_command_that_is_no_python_is_said_to_be_none(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "--", "sleep", "infinity")
    assert b"launcher: none" in done.stderr
    assert mapping_of(fake)["launcher"] == "none"


def test_a_program_with_a_blank_in_its_name(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "my script.sh").touch()
    assert run("submit", "--", "./my script.sh", HOME=ELSEWHERE).returncode == 0
    assert mapping_of(fake)["run"] == ["./my script.sh"]


def test_a_job_on_standard_input(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "-f", "-")
    out, _ = process.communicate(b"run: train.py\n", timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"42\n")


def test_every_mistake_is_named_at_once_and_nothing_is_sent(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nnodez: 2\nworkdir: ~/x\ntime_limit: 90\n")
    done = run("submit", "-f", "job.yaml")
    assert (done.returncode, done.stdout) == (2, b"")
    for field in (b"nodez", b"workdir", b"time_limit"):
        assert field in done.stderr
    assert not fake.script.requests


def test_errors_found_by_the_coordinator_name_the_field(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "--pool", "nowhere", "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"pool: `nowhere`: there is no such pool\n      try default" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("--", "train.py", "--nodes", "2"),
        # Options after the program belong to the program, even if `submit` has the same ones.
        ("train.py", "--config", "a.yaml", "--name", "b"),
    ],
)
def test_options_of_the_command_are_the_commands(
    run: Run, fake: FakeCoordinator, command: tuple[str, ...]
) -> None:
    assert run("submit", *command).returncode == 0
    assert mapping_of(fake)["run"] == [word for word in command if word != "--"]


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (("--", "train.py"), False),
        (("--", "-m", "train"), False),
        (("--", "/data/trian.py"), False),
        # `setup` may bring it, and another folder is not looked at: its disk may hang.
        (("--set", "setup=git clone x", "--", "trian.py"), False),
        (("--set", "workdir=/data", "--", "trian.py"), False),
        (("-f", "job.yaml"), False),
        (("-f", "job.yaml", "--set", "workdir=HERE"), True),
    ],
)
def test_a_script_that_is_not_in_this_folder_is_reported_before_it_waits(
    run: Run, fake: FakeCoordinator, tmp_path: Path, arguments: tuple[str, ...], warned: bool
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("run: trian.py\nworkdir: /data\n")
    words = [word.replace("HERE", str(tmp_path)) for word in arguments]
    done = run("submit", *words, HOME=ELSEWHERE)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
    assert (b"trian.py is not in th" in done.stderr) is warned


@pytest.mark.parametrize("words", [("python", "trian.py", "--lr", "1"), ("sub/trian.py",)])
def test_a_script_that_would_not_travel_is_refused(
    run: Run, fake: FakeCoordinator, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").touch()
    done = run("submit", "--", *words, HOME=ELSEWHERE)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"did you mean train.py?" in done.stderr
    assert not fake.script.submitted


@pytest.mark.parametrize("more", [(), ("--wait",), ("--follow",), ("--wait", "--json")])
def test_a_job_that_can_never_start_is_no_mistake_of_usage(
    run: Run, fake: FakeCoordinator, more: tuple[str, ...]
) -> None:
    done = run("submit", "--nodes", "4096", *more, "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (123, b"")
    assert done.stderr.endswith(b"muster: job 'train' cannot start: it needs 4096 nodes\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no job"),
        (("job.yaml",), "muster submit -f job.yaml"),
        (("--", "--lr", "1"), "begins with an option"),
        (("--", "echo a && exit 3"), "write it as: -- bash -c 'echo a && exit 3'"),
        (("-f", "job.yaml", "--", "a|b"), "write it as: -- bash -c 'a|b'"),
        (("--", "python train.py --lr 1"), "write it as: -- python train.py --lr 1"),
        (
            ("train.py", "--lr", "1", "--dry-run"),
            "receive it: write it before train.py, or, if that is",
        ),
        (("python", "train.py", "--nodes=2"), "--nodes follows the command"),
        (("-f", "missing.yaml"), "cannot be read: No such file"),
        (("-f", "."), "cannot be read: Is a directory"),
        (("-f", "latin.yaml"), "is not UTF-8 (byte 5)"),
        (("-f", "job.yaml", "--set", "nodes"), "is not `key=value`"),
        (("-f", "job.yaml", "--idempotency-key", ""), "'--idempotency-key': '' is not a valid key"),
        (
            ("-f", "job.yaml", "--idempotency-key", "ü"),
            "'--idempotency-key': 'ü' is not a valid key",
        ),
    ],
)
def test_wrong_usage_is_said(
    run: Run, fake: FakeCoordinator, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\n")
    (tmp_path / "latin.yaml").write_bytes(b"run: \xfc.py\n")
    done = run("submit", *arguments)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert not fake.script.requests


def test_a_dry_run_without_a_coordinator_is_checked_here(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\n")
    done = run("submit", "-f", "job.yaml", "--dry-run", "--json", MUSTER_TOKEN="")
    assert json.loads(done.stdout)["priority"] == 50
    assert not fake.script.requests
    older = run("submit", "-f", "job.yaml", "--dry-run")
    assert (older.returncode, b"priority: 50\n" in older.stdout) == (0, True)
    assert b"checked here only" in older.stderr
    assert not fake.script.submitted


def test_a_dry_run_prints_a_script_with_its_lines(run: Run, tmp_path: Path) -> None:
    script = "#!/bin/bash\nif true; then\n  ./bench.sh \\\n    'a b'\nfi\n"
    indented = script.replace("\n", "\n  ").rstrip()
    (tmp_path / "job.yaml").write_text(f"launcher: none\nrun: |\n  {indented}\n")
    done = run("submit", "-f", "job.yaml", "--dry-run")
    assert f"\nrun: |\n  {indented}\n" in done.stdout.decode()
    (tmp_path / "again.yaml").write_bytes(done.stdout)
    again = run("submit", "-f", "again.yaml", "--dry-run", "--json")
    assert json.loads(again.stdout)["run"] == script


def test_a_dry_run_says_whether_the_job_fits(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\n")
    spec = {"name": "train", "run": ["train.py"], "nodes": 1}
    fake.script.validation = api.Validation(
        spec, ("env.A_TOKEN seems to be a secret",), fits=True, pool_defaults=("time_limit",)
    )
    fits = run("submit", "-f", "job.yaml", "--dry-run")
    assert (fits.returncode, fits.stdout.splitlines()[0]) == (0, b"name: train")
    assert b"seems to be a secret\nmuster: it fits" in fits.stderr
    assert b"by its defaults: time_limit\n" in fits.stderr
    fake.script.validation = api.Validation(spec, (), fits=False, unfit="it needs 9 nodes")
    unfit = run("submit", "-f", "job.yaml", "--dry-run", "--json")
    assert (unfit.returncode, json.loads(unfit.stdout)) == (123, spec)
    assert b"does not fit the known nodes: it needs 9 nodes" in unfit.stderr
    assert not fake.script.submitted


def test_a_batch_script_of_slurm_is_submitted_with_what_is_typed_beside_it(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -N 4 -p gpu\nsrun torchrun --nnodes=4 train.py --lr 1\n"
    )
    (tmp_path / "train.py").touch()
    done = run("submit", "--from-sbatch", "job.sh", "--nodes", "2", HOME=ELSEWHERE)
    assert (done.returncode, done.stdout) == (0, b"42\n")
    (sha256,) = fake.script.bundles
    assert mapping_of(fake) == {
        "run": ["train.py", "--lr", "1"],
        "nodes": "2",
        "workdir": {"bundle": sha256},
    }
    assert b"#SBATCH --partition=gpu is ignored: name a pool with --pool" in done.stderr
    assert run("submit", "--from-sbatch", "job.sh", "-f", "job.yaml").returncode == 2


def test_the_refusal_of_a_batch_script_names_what_was_not_taken_over(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -N 0 -p gpu\nsrun python train.py\n")
    done = run("submit", "--from-sbatch", "job.sh")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "nodes: `0`" in said
    assert "  #SBATCH --partition=gpu is ignored: name a pool with --pool\n" in said
    assert not fake.script.submitted


def test_a_mistake_of_an_option_is_not_blamed_on_the_file(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nenv: {A: '1'}\nretry: {infra: 1}\n")
    done = run("submit", "-f", "job.yaml", "-e", "RANK=0", "--set", "retry.user=x")
    said = done.stderr.decode()
    assert "\n  -e RANK: env.RANK: " in said
    assert "\n  --set retry.user: retry.user: " in said
    assert "line " not in said
    assert not fake.script.submitted


@pytest.mark.parametrize(
    ("env", "level"),
    [("{}", None), ("{NCCL_DEBUG: WARN}", "INFO"), ("{NCCL_DEBUG: trace}", "trace")],
)
def test_nccl_debug_raises_the_level_and_never_lowers_it(
    run: Run, fake: FakeCoordinator, tmp_path: Path, env: str, level: str | None
) -> None:
    (tmp_path / "job.yaml").write_text(f"run: train.py\nenv: {env}\n")
    assert run("submit", "-f", "job.yaml", "--nccl-debug").returncode == 0
    assert mapping_of(fake)["env"] == ({} if level is None else {"NCCL_DEBUG": level})
    assert mapping_of(fake)["nccl_debug"] == "true"


def test_a_command_that_takes_the_place_of_the_files_is_said(
    run: Run, fake: FakeCoordinator, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("run: train.py\nworkdir: /x\n")
    done = run("submit", "-f", "job.yaml", "--", "python", "eval.py")
    assert b"the command after -- replaces `run` in job.yaml\n" in done.stderr
    assert mapping_of(fake) == {"run": ["eval.py"], "workdir": "/x"}


def test_json_is_one_document_whatever_is_waited_for(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "--wait", "--json", "--", "python", "train.py")
    fake.wait_for_request("/wait")
    fake.put(ended(job_view(), JobState.FAILED, 3))
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, json.loads(out)["state"]) == (3, "FAILED")


def test_json_and_logs_do_not_share_stdout(run: Run, fake: FakeCoordinator) -> None:
    done = run("submit", "--follow", "--json", "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert not fake.script.submitted


def test_the_same_key_is_the_same_job(run: Run, fake: FakeCoordinator) -> None:
    arguments = ("submit", "--idempotency-key", "k", "--json", "--", "python", "a.py")
    ids = {json.loads(run(*arguments).stdout)["id"] for _ in range(2)}
    assert ids == {42}


def test_wait_ends_with_the_jobs_code(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "--wait", "--", "python", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n", "the id is there before the job ends"
    fake.wait_for_request("/wait")
    fake.put(ended(job_view(), JobState.TIMEOUT, 124, "over its time limit of 1h"))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 124
    assert b"job 42 TIMEOUT: over its time limit of 1h (exit code 124)" in err


def test_a_rerun_waits_as_a_submit_does(start: Start, fake: FakeCoordinator) -> None:
    fake.put(job_view(7))
    fake.put(job_view(8))
    fake.script.rerun = 8
    process = start("rerun", "7", "--wait")
    assert process.stdout is not None
    assert process.stdout.readline() == b"8\n", "the id is there before the job ends"
    fake.wait_for_request("/jobs/8/wait")
    fake.put(ended(job_view(8), JobState.FAILED, 3, "rank 1 exited with code 3"))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3
    assert b"job 8 FAILED: rank 1 exited with code 3 (exit code 3)" in err


def test_a_rerun_follows_as_a_submit_does(run: Run, fake: FakeCoordinator) -> None:
    fake.put(job_view(7))
    fake.put(ended(job_view(8), JobState.SUCCEEDED, 0, "every rank finished"))
    fake.script.rerun = 8
    fake.log(record(1, "trained\n"))
    done = run("rerun", "7", "--follow")
    assert (done.returncode, done.stdout) == (0, b"8\ntrained\n"), done.stderr
    alone = run("rerun", "7", "--follow", "--json")
    assert (alone.returncode, alone.stdout) == (2, b"")


def test_follow_prints_the_logs_and_ends_with_the_jobs_code(
    start: Start, fake: FakeCoordinator
) -> None:
    process = start("submit", "--follow", "--", "python", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n"
    fake.log(*(record(number, f"{number}\n") for number in range(1, 31)))
    fake.put(ended(job_view(reason=api.Reason("x", "")), JobState.FAILED, 9))
    out, err = process.communicate(timeout=DEADLINE_S)
    assert out == b"".join(b"%d\n" % number for number in range(1, 31))
    assert process.returncode == 9
    # In a pipe as well, as it is not said that only rank 0 is followed.
    assert err.count(b"rank 0 only; every rank: muster logs --rank all 42") == 1


def test_follow_names_the_other_ranks_once_their_number_is_known(
    start: Start, fake: FakeCoordinator
) -> None:
    """On one node, the number may be that of the node's GPUs."""
    fake.script.jobs[42] = job_view(nodes=1)
    process = start("submit", "--follow", "--", "python", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == b"42\n"
    fake.wait_for_request("/logs")
    ranks = (api.RankView(0, None), api.RankView(1, None))
    task = api.TaskView("gpu-01", 0, "launcher", TaskState.EXITED, ranks, None, None)
    attempt = api.AttemptView(1, "closed", (task,), None, None, timestamp(1), timestamp(2), None)
    fake.put(ended(job_view(nodes=1, attempts=(attempt,)), JobState.SUCCEEDED, 0))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert err.count(b"rank 0 only; every rank: muster logs --rank all 42") == 1


def test_a_submit_lasts_over_a_restart(start: Start, fake: FakeCoordinator) -> None:
    fake.stop()
    process = start("submit", "--", "python", "train.py")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, b"")
    assert any(b"retrying for 30s" in line for line in lines)
    fake.start()
    assert process.communicate(timeout=DEADLINE_S)[0] == b"42\n"
    assert len(fake.script.submitted) == 1


def test_ctrl_c_while_waiting_detaches(start: Start, fake: FakeCoordinator) -> None:
    process = start("submit", "--wait", "--", "python", "train.py")
    fake.wait_for_request("/wait")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"detached; job 42 continues: muster logs -f 42 | muster cancel 42" in err
    assert not fake.script.cancelled
