"""A job as a job file that people can read on; apart, for what it costs to load YAML."""

from __future__ import annotations

from collections.abc import Mapping

import yaml


class _Dumper(yaml.SafeDumper):
    """A script keeps its lines: in quotes it would be one word full of escapes."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def job_text(mapping: Mapping[str, object], encoding: str) -> str:
    """The YAML of a job, its keys in the order in which they are given. Where `encoding` has not
    all characters, YAML's own escapes mean the same job."""
    whole = encoding.lower() == "utf-8"
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=whole)
