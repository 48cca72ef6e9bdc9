"""Rules of this coordinator's configuration for every submitted job."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.http.views import FieldProblem
from muster.spec.model import JobSpec
from muster.spec.pool_defaults import PoolDefaults, check_defaults
from orchestrator.api.http.problems import ApiError
from orchestrator.webhooks.allowlist import AllowedPlace, refused


@dataclass(frozen=True, slots=True)
class SubmitRules:
    """The `defaults` of each pool, and the `webhooks` that jobs may name."""

    defaults: PoolDefaults = field(default_factory=dict)
    webhooks: tuple[AllowedPlace, ...] = ()

    def workdirs(self) -> dict[str, str]:
        """The `workdir` that each pool sets for its jobs, of those that do."""
        specs = {pool: check_defaults(pool, dict(tree)) for pool, tree in self.defaults.items()}
        return {pool: spec.workdir for pool, spec in specs.items() if spec.workdir is not None}

    def check(self, spec: JobSpec) -> None:
        """Check a job. Raises ApiError (422)."""
        problems = [
            FieldProblem(f"notify[{at}]", url, why, "ask whoever runs the coordinator to allow it")
            for at, url in enumerate(spec.notify)
            if (why := refused(url, self.webhooks)) is not None
        ]
        if spec.workdir is not None and not spec.workdir.startswith("/"):
            why = "is a folder of the machine that submits, and its content was not sent"
            hint = "submit with `muster submit`, or write an absolute path that the nodes have"
            problems.append(FieldProblem("workdir", spec.workdir, why, hint))
        if spec.git is not None and not spec.git.commit:
            why = "names no commit, and only the machine that submits finds the one of a branch"
            hint = "submit with `muster submit`, or write a commit in full (40 digits)"
            problems.append(FieldProblem("workdir.ref", spec.git.ref, why, hint))
        if problems:
            detail = "; ".join(f"{p.field}: {p.value} {p.message}" for p in problems)
            raise ApiError(422, "bad_job", detail, problems=problems)
