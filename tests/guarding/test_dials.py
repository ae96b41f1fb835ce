"""Levels as graph inputs: callers that give none get the defaults; every other level is what `guard` would choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import run
from tna_onnx.errors import UsageError
from tna_onnx.graph.decision_ops import Dial
from tna_onnx.guarding.dials import dial_threshold, set_dial
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.conformal import quantile

WORDS = {"add": ["confidence", "accept", "set"], "risk": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def dialled(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dials") / "d.onnx"
    tna_onnx.guard(small.model, small.calib, output=path, dials=True, **WORDS)
    onnx.checker.check_model(path, full_check=True)
    return path


def test_callers_that_know_no_dials_get_the_defaults(
    small: Small, dialled: Path, data: dict[str, np.ndarray], tmp_path: Path
) -> None:
    tna_onnx.guard(small.model, small.calib, output=tmp_path / "g.onnx", **WORDS)
    expected = run(tmp_path / "g.onnx", data["new"])
    found = run(dialled, data["new"])
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("coverage", [50, 80, 99])
@pytest.mark.parametrize("risk", [15, 30])
def test_every_level_is_what_guard_chooses_for_it(
    small: Small,
    dialled: Path,
    data: dict[str, np.ndarray],
    coverage: float,
    risk: float,
    tmp_path: Path,
) -> None:
    words = {**WORDS, "coverage": coverage, "risk": risk}
    tna_onnx.guard(small.model, small.calib, output=tmp_path / "g.onnx", **words)
    expected = run(tmp_path / "g.onnx", data["new"])
    found = run(dialled, data["new"], coverage=coverage / 100, risk=risk / 100)
    np.testing.assert_array_equal(found["set"], expected["set"])
    np.testing.assert_array_equal(found["accept"], expected["accept"])


def test_levels_that_cannot_be_promised_are_on_the_safe_side(dialled: Path, data: dict[str, np.ndarray]) -> None:
    found = run(dialled, data["new"], coverage=0.99999, risk=0.0001)
    assert found["set"].all()
    assert not found["accept"].any()


@pytest.mark.parametrize("n", [9, 19, 99, 1000])
def test_the_table_ranks_as_the_quantile_does(n: int) -> None:
    scores = np.random.default_rng(n).random(n).astype(np.float32)
    dial = set_dial(scores, GuardSettings(dials=True, add=("set",)))
    for level in (0.1, 0.5, 0.8, 0.9, 0.95, 0.99):
        turned = Dial(dial.name, level, dial.levels, dial.thresholds)
        assert float(dial_threshold(turned)) == quantile(scores, level), level


def test_the_names_of_dials_have_the_prefix(small: Small, tmp_path: Path) -> None:
    words = {**WORDS, "prefix": "my_", "dials": True}
    result = tna_onnx.guard(small.model, small.calib, output=tmp_path / "g.onnx", **words)
    assert [(dial.name, dial.role) for dial in result.inputs] == [("my_risk", "risk"), ("my_coverage", "coverage")]
    graph = onnx.load(tmp_path / "g.onnx").graph
    assert [info.name for info in graph.input] == ["x", "my_risk", "my_coverage"]


def test_a_threshold_a_class_has_no_dial() -> None:
    with pytest.raises(UsageError, match="dials need one threshold for all classes"):
        GuardSettings(dials=True, per_class=True)
