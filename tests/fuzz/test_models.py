"""Damaged models; `python -m tests.fuzz --harness models` runs more of them, in processes of their own."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.models import OUTCOMES, data_of, outcome_of
from tests.fuzz.mutations import mutated
from tests.graph.samples import CASES

# Cases that once ended in a traceback: an opset beyond 32 bits, and a type that the ONNX checker does not know.
FOUND = (395,)


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_before(case: int, tmp_path: Path) -> None:
    assert outcome_of(data_of(case, seed=0), tmp_path) in OUTCOMES[:2]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(CASES)), random=st.randoms(use_true_random=False))
def test_damage_is_refused_or_does_no_harm(name: str, random: Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome = outcome_of(mutated(CASES[name]().proto, random), tmp_path_factory.mktemp("case"))
    assert outcome in OUTCOMES[:2]
