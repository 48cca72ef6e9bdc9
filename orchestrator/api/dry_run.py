"""Validation of a job without submitting it."""

from muster.http.views import Validation
from muster.protocol.text import count
from muster.spec.checks.advice import advice
from muster.spec.model import JobSpec
from muster.spec.serialize import to_mapping
from orchestrator.api.redaction import is_secret, without_secrets_inside
from orchestrator.core.model.node import LinkState
from orchestrator.core.model.state import State
from orchestrator.core.scheduling.gpu_preference import is_short
from orchestrator.core.scheduling.placement import never_fits, unfit


def validation(state: State, spec: JobSpec, filled: tuple[str, ...]) -> Validation:
    """Validate against the nodes known now. Nothing is stored."""
    impossible = never_fits(state, spec)
    return Validation(
        spec=without_secrets_inside(to_mapping(spec)),
        warnings=tuple(_warnings(state, spec, fits=impossible is None)),
        fits=impossible is None,
        unfit=impossible,
        pool_defaults=filled,
    )


def _warnings(state: State, spec: JobSpec, *, fits: bool) -> list[str]:
    names = {*spec.env, *spec.roles.launcher.env, *spec.roles.worker.env}
    notes = [
        f"env.{name} seems to be a secret: the coordinator keeps it as it is, and only hides it "
        "where jobs are shown; let the program read it from a file that only its user can"
        for name in sorted(names)
        if is_secret(name)
    ]
    notes += advice(spec)
    notes += _more_ranks_than_gpus(state, spec)
    here = sum(
        node.link is LinkState.CONNECTED and unfit(spec, node) is None
        for node in state.nodes.values()
    )
    if fits and here < spec.nodes:
        notes.append(
            f"it would wait: {count(here, 'node')} of the {spec.nodes} that it needs "
            f"{'is' if here == 1 else 'are'} connected now"
        )
    return notes


def _more_ranks_than_gpus(state: State, spec: JobSpec) -> list[str]:
    """A note if each node that suits the job has GPUs, but fewer than the job's ranks."""
    suited = [node for node in state.nodes.values() if unfit(spec, node) is None]
    if not suited or not all(node.inventory.gpus for node in suited):
        return []
    if not all(is_short(spec, rank, node) for node in suited for rank in (0, 1)):
        return []
    most = max(node.inventory.gpus for node in suited)
    note = (
        f"the nodes have {count(most, 'GPU')} at most, and would get more ranks: NCCL refuses two "
        "ranks on one GPU. Leave `nproc_per_node` out for one rank on each GPU"
    )
    return [note]
