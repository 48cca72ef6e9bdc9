"""Redaction of a shown job: by names, in every way in which a command gives a value."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.spec.model import Argv, Shell
from muster.spec.parse import MAX_LAUNCH_BYTES
from orchestrator.api.redaction import REDACTED, without_secrets_inside

CANARY = "hf_canary5512"


def shown(run: Any) -> Any:
    return without_secrets_inside({"spec": {"run": run}})["spec"]["run"]


@pytest.mark.parametrize(
    "argv",
    [
        (f"--wandb-key={CANARY}",),
        ("--hf_token", CANARY),
        ("--api-key", CANARY, "--lr", "0.1"),
        (f"--password={CANARY} with spaces, and 'quotes",),
        (f"+model.hf_token={CANARY}",),
        ("-e", f"HF_TOKEN={CANARY}"),
        (f"--env=HF_TOKEN={CANARY}",),
        ("bash", "-c", f"export HF_TOKEN={CANARY}; exec train"),
        ("--db", f"postgres://u:{CANARY}@host/db"),
        (f"--db=postgres://u:{CANARY}:#?@host/db",),
        ("--password", "90210"),
        ("-H", f"Authorization: Bearer {CANARY}"),
        ("-H", f"X-Api-Key:{CANARY}"),
        ("--env", f"PGPASSWORD={CANARY}"),
    ],
)
def test_words_of_a_command(argv: tuple[str, ...]) -> None:
    hidden = shown(["train.py", *argv])
    assert hidden[0] == "train.py"
    assert len(hidden) == 1 + len(argv)
    assert REDACTED in str(hidden)
    assert CANARY not in str(hidden)
    assert "90210" not in str(hidden)


@pytest.mark.parametrize(
    ("script", "hidden"),
    [
        (f"export HF_TOKEN={CANARY}; pip install .", f"export HF_TOKEN={REDACTED}; pip install ."),
        (f"A=1 HF_TOKEN='{CANARY} b' c", f"A=1 HF_TOKEN={REDACTED} c"),
        (f'API_KEY="{CANARY} \\" b"\nc', f"API_KEY={REDACTED}\nc"),
        (f'API_KEY="{CANARY} b', f"API_KEY={REDACTED}"),
        (f"a --api-key {CANARY} && b", f"a --api-key {REDACTED} && b"),
        (f"a --api-key \\\n  {CANARY} -v", f"a --api-key \\\n  {REDACTED} -v"),
        (f"a --token=x{CANARY}|b", f"a --token={REDACTED}|b"),
        (f"URL=postgres://u:{CANARY}@h/d a", f"URL=postgres://u:{REDACTED}@h/d a"),
        (f"PGPASSWORD={CANARY} psql", f"PGPASSWORD={REDACTED} psql"),
        (f"MYSQL_PWD={CANARY} mysql", f"MYSQL_PWD={REDACTED} mysql"),
        (f"curl -H 'authorization: {CANARY}' a", f"curl -H 'authorization: {REDACTED}' a"),
        (
            f'curl -H "PRIVATE-TOKEN: {CANARY}" -H "Accept: */*" a',
            f'curl -H "PRIVATE-TOKEN: {REDACTED}" -H "Accept: */*" a',
        ),
        (
            f"curl -HAuthorization:\\ Bearer\\ {CANARY}",
            f"curl -HAuthorization:\\ Bearer\\ {REDACTED}",
        ),
        (
            f'h={{"Authorization": "Bearer {CANARY}"}}',
            f'h={{"Authorization": "Bearer {REDACTED}"}}',
        ),
        (
            f"curl -H 'Authorization: Token token=\"{CANARY}\"' a",
            f"curl -H 'Authorization: Token {REDACTED}' a",
        ),
        (
            f'curl -H \'Cookie: a_token="{CANARY}"; sid="{CANARY}"\' -v',
            f"curl -H 'Cookie: {REDACTED}' -v",
        ),
        (f'a "cookie: x MY_TOKEN="{CANARY} b', f'a "cookie: {REDACTED} b'),
        (f'curl -HCookie:a=b --token="{CANARY}"', f"curl -HCookie:{REDACTED}"),
        (
            f'curl -d "{{\\"Authorization\\": \\"Bearer {CANARY}\\"}}" a',
            f'curl -d "{{\\"Authorization\\": \\"Bearer {REDACTED}\\"}}" a',
        ),
        (
            f'h={{"Authorization": "Digest \\"{CANARY}\\" {CANARY}", "a": "b"}}',
            f'h={{"Authorization": "{REDACTED}", "a": "b"}}',
        ),
        (f"curl -H 'DD-API-KEY: {CANARY}' a", f"curl -H 'DD-API-KEY: {REDACTED}' a"),
        (f'JOB-TOKEN:{CANARY} "{CANARY}"\nb', f"JOB-TOKEN:{REDACTED}\nb"),
        (f"git clone https://{CANARY}@github.com/a", f"git clone https://{REDACTED}@github.com/a"),
    ],
)
def test_a_script(script: str, hidden: str) -> None:
    assert shown(script) == hidden


@pytest.mark.parametrize(
    "run",
    [
        ["--tokenizer", "gpt2"],
        ["--max-tokens", "100", "--num-tokens=5", "--tokens=1e9", "--max_tokens=-1"],
        ["--use-auth-token", "--lr", "0.1"],
        ["--tokenizer=gpt2", "KEY=value", "--key", "value"],
        ["--url", "https://host:8080/a@b", "git@github.com:a/b", "ssh://git@host/a"],
        "train --max-tokens 100 --tokenizer gpt2 --use-auth-token --lr 1\necho",
        "train --use-auth-token\necho a",
        "train --use-auth-token  \\\n  -v",
        "num_tokens=5; KEY=a b; MONKEY=c",
        "cd $OLDPWD; PWD=/tmp; echo 'x-axis: key'; echo tokens: 5",
        "python -c 'def f(token: str, key: int): pass'; curl -H 'Accept: a/b' https://h:80/c",
    ],
)
def test_values_that_are_no_secrets(run: Any) -> None:
    assert shown(run) == run


def test_a_command_is_found_wherever_a_job_has_one_and_in_either_form() -> None:
    words, script = Argv(("a", "--token", CANARY)), Shell(f"TOKEN={CANARY}")
    spec = {
        "run": msgspec.to_builtins(words),
        "setup": msgspec.to_builtins(script),
        "roles": {"worker": {"run": list(words.argv)}},
        "env": {"DATABASE_URL": f"postgres://u:{CANARY}@h/d", "HF_TOKEN": CANARY, "A": "b"},
    }
    hidden = without_secrets_inside({"spec": spec})["spec"]
    assert hidden == {
        "run": {"type": "argv", "argv": ["a", "--token", REDACTED]},
        "setup": {"type": "shell", "script": f"TOKEN={REDACTED}"},
        "roles": {"worker": {"run": ["a", "--token", REDACTED]}},
        "env": {"DATABASE_URL": f"postgres://u:{REDACTED}@h/d", "HF_TOKEN": REDACTED, "A": "b"},
    }


@given(st.text(alphabet="a-=_'\"\\ \n:/@.KEYTOKEN", max_size=300))
def test_any_text_is_accepted(text: str) -> None:
    assert isinstance(shown(text), str)
    assert len(shown([text, text])) == 2


@pytest.mark.parametrize(
    "part",
    [
        "x-",
        "a=",
        "a_token=",
        "x-key ",
        "cookie ",
        "_PWD",
        "-Hx-",
        "x-key:'",
        "'x-key:a'",
        "cookie:a\\",
        "authorization:\t",
        "--a ",
        "'",
    ],
)
def test_a_script_that_is_long_takes_no_longer_for_what_stands_in_it(part: str) -> None:
    """A search that starts anew at each place would take hours for this."""
    script = part * (1_000_000 // len(part))
    assert CANARY not in shown(f"{script}\nA_PASSWORD={CANARY}")


@pytest.mark.parametrize("end", ["", ":"])
def test_the_longest_command_of_a_job_costs_a_small_part_of_a_second(end: str) -> None:
    words = ["a-H" * (MAX_LAUNCH_BYTES // 12) + end] * 4
    took = []
    for _ in range(3):
        began = time.process_time()
        shown(words)
        took.append(time.process_time() - began)
    assert min(took) < 0.5
