"""Advice on a job that is accepted: settings that have no effect or do harm."""

from __future__ import annotations

from muster.spec.checks.env_advice import env_advice
from muster.spec.checks.gpus import rank_advice
from muster.spec.model import JobSpec


def advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for each such setting."""
    return (*env_advice(spec), *rank_advice(spec))
