"""`muster schema`: the JSON Schema of the job file, for editors and other programs."""

from __future__ import annotations

import click

from muster.cli.output.json_output import print_json


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the job file (2020-12).

    \b
    muster schema > muster-job.schema.json
    # yaml-language-server: $schema=muster-job.schema.json   (first line of job.yaml)
    """
    from muster.spec.schema import job_schema

    print_json(job_schema())
