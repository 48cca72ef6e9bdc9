"""`muster attach`: follow a job until it ends, and exit with its code."""

from __future__ import annotations

import click

from muster.cli.client_options import connect, connection_options
from muster.cli.input.job_ref import JOB, find_job
from muster.cli.jobs.logs import TAIL_WHEN_FOLLOWING, show_logs
from muster.cli.jobs.wait import code_though_unread
from muster.cli.output.json_output import json_option
from muster.cli.output.log_json import print_records
from muster.client import LogQuery
from muster.protocol.outcome import EXIT_CLIENT


@click.command("attach")
@click.argument("job", metavar="JOB", type=JOB)
@json_option
@connection_options
def command(*, job: str, as_json: bool) -> int:
    """Follow a job's logs until it ends, and exit with its code: `logs -f --exit-status`.

    Ctrl-C detaches (130) without stopping the job. With --json, prints the API's log records and a
    trailer, one per line.
    """
    client = connect()
    query = LogQuery(follow=True, rank=0, tail=TAIL_WHEN_FOLLOWING)
    number = find_job(client, job)
    code = code_though_unread(
        client,
        number,
        lambda: (
            print_records(client, number, query)[0] if as_json else show_logs(client, number, query)
        ),
    )
    return EXIT_CLIENT if code is None else code
