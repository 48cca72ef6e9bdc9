"""Changes to a submitted job."""

import pytest

from muster.spec.errors import SpecError
from muster.spec.model import JobSpec, Launcher, Shell
from muster.spec.update import Amendment, amend

SPEC = JobSpec(name="a", run=Shell("true"), launcher=Launcher.NONE)


def test_a_setting_has_its_aliases() -> None:
    for name in ("time_limit", "max_duration", "time"):
        assert amend(SPEC, {name: "2h"}, 42) == Amendment(time_limit_s=7200.0)
        assert amend(SPEC, {name: None}, 42) == Amendment(time_limit_s=None)


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="another name of `time_limit`"):
        amend(SPEC, {"time_limit": "1h", "max_duration": "2h"}, 42)


def test_too_many_keys_are_refused_without_a_lookup() -> None:
    """The search for what each may have meant costs much."""
    with pytest.raises(SpecError) as found:
        amend(SPEC, {f"k{number}": 1 for number in range(60_000)}, 42)
    assert len(found.value.problems) == 1
    assert "60000 keys" in str(found.value)
