"""A job as a readable job file. A separate module, because loading YAML is slow."""

from __future__ import annotations

from collections.abc import Mapping

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes scripts as block scalars, because in quotes they would be one line full of escapes."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def job_text(mapping: Mapping[str, object], encoding: str) -> str:
    """Return the YAML of a job, its keys in the given order. Characters that `encoding` lacks
    become YAML escapes, so the job is the same."""
    whole = encoding.lower() == "utf-8"
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=whole)
