"""`muster rerun`: submit a job again."""

from __future__ import annotations

import os

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.errors import DetachedError
from muster.cli.input.job_ref import JOB, NODE, find_job
from muster.cli.input.param_types import IDEMPOTENCY_KEY
from muster.cli.jobs.wait import print_and_wait
from muster.cli.output.format import note, safe
from muster.cli.output.time_limit import note_time_limit


@click.command("rerun")
@click.argument("job", metavar="JOB", type=JOB)
@click.option("--exclude", multiple=True, metavar="NODE", type=NODE, help="Exclude this node.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the job.")
@click.option(
    "--ship", "ships", is_flag=True, help="Send the code as it is now in its folder, not as before."
)
@click.option("--wait", "waits", is_flag=True, help="Wait until it ends, and exit with its code.")
@click.option("--follow", is_flag=True, help="Like --wait, and print its logs.")
@click.option(
    "--idempotency-key",
    "key",
    type=IDEMPOTENCY_KEY,
    metavar="KEY",
    help="A repeated rerun with the same key returns the same job.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the job as JSON instead of the id; with --wait, after its end.",
)
@connection_options
def command(
    *,
    job: str,
    exclude: tuple[str, ...],
    sets: tuple[str, ...],
    ships: bool,
    waits: bool,
    follow: bool,
    key: str | None,
    as_json: bool,
) -> int:
    """Submit a job again as it was submitted; prints the new id, alone, on standard output.

    \b
    muster rerun 42 --exclude gpu-07 --set time_limit=36h
    muster rerun last --ship --follow
    """
    if as_json and follow:
        raise click.UsageError("--follow prints the logs on stdout, which --json needs alone")
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
    # Note this first: the job is submitted even if the following output cannot be printed.
    said = f"{safe(summary.name)}, job {number} again"
    note(f"submitted job {summary.id} ({said}), {summary.state.value}")
    if not any(each.partition("=")[0].strip() == "time_limit" for each in sets):
        note_time_limit(summary, f"as job {number} had (another: --set time_limit=TIME)")
    return print_and_wait(client, summary, waits=waits, follow=follow, as_json=as_json)
