"""`muster rerun`: submit a job again."""

from __future__ import annotations

import os

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.errors import DetachedError
from muster.cli.input.job_ref import JOB, NODE, find_job
from muster.cli.input.param_types import IDEMPOTENCY_KEY
from muster.cli.output.format import note, safe
from muster.cli.output.json_output import json_option, print_json
from muster.cli.output.time_limit import note_time_limit


@click.command("rerun")
@click.argument("job", metavar="JOB", type=JOB)
@click.option("--exclude", multiple=True, metavar="NODE", type=NODE, help="Exclude this node.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the job.")
@click.option(
    "--ship", "ships", is_flag=True, help="Send the code as it is now in its folder, not as before."
)
@click.option(
    "--idempotency-key",
    "key",
    type=IDEMPOTENCY_KEY,
    metavar="KEY",
    help="A repeated rerun with the same key returns the same job.",
)
@json_option
@connection_options
def command(
    *,
    job: str,
    exclude: tuple[str, ...],
    sets: tuple[str, ...],
    ships: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit a job again as it was submitted; prints the new id, alone, on standard output.

    \b
    muster rerun 42 --exclude gpu-07 --set time_limit=36h
    muster rerun last --ship
    """
    client = connect()
    number = find_job(client, job)
    if ships:
        from muster.cli.input.code import send_again

        code = send_again(client, number)
        sets = (*sets, f"workdir={{bundle: {code.sha256}}}")
    try:
        summary = client.rerun(number, key or os.urandom(16).hex(), sets=sets, exclude=exclude)
    except KeyboardInterrupt:
        raise DetachedError(
            "interrupted; the job may have been submitted: muster ps -n 5"
        ) from None
    if as_json:
        print_json(summary)
    else:
        print(summary.id, flush=True)
    said = f"{safe(summary.name)}, job {number} again"
    note(f"submitted job {summary.id} ({said}), {summary.state.value}")
    if not any(each.partition("=")[0].strip() == "time_limit" for each in sets):
        note_time_limit(summary, f"as job {number} had (another: --set time_limit=TIME)")
