"""Variables for NCCL that contradict `rdma: required`."""

from __future__ import annotations

import pytest

from muster.spec.errors import SpecError
from muster.spec.parse import parse_job


@pytest.mark.parametrize("setting", ["NCCL_IB_DISABLE=1", "NCCL_NET=Socket"])
@pytest.mark.parametrize("where", ["env", "roles.worker.env"])
def test_required_and_off_contradict_each_other(setting: str, where: str) -> None:
    name, value = setting.split("=")
    env = f"env: {{{name}: '{value}'}}"
    text = f"run: train.py\n{env if where == 'env' else f'roles: {{worker: {{{env}}}}}'}\n"
    parse_job(text)
    with pytest.raises(SpecError) as caught:
        parse_job(f"{text}rdma: required\n")
    (problem,) = caught.value.problems
    assert problem.message == f"rdma: required and {setting} in {where} contradict each other"
    assert problem.hint == "leave one out"


def test_a_plugin_does_without_nccl_s_own_transport() -> None:
    env = "{NCCL_IB_DISABLE: '1', NCCL_NET_PLUGIN: ofi}"
    parse_job(f"run: train.py\nrdma: required\nenv: {env}\n")
