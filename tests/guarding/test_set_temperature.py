"""A temperature of its own for sets: smaller sets, the same coverage, and thresholds from other samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import run
from tna_onnx.errors import UsageError
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.conformal import coverage_band, mean_size, small_set_temperature, tempered


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are right, of 8 classes."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 8))
    labels = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return tempered(np.exp(z), 1.0), labels


def test_tempered_by_definition() -> None:
    p, _ = drawn(50)
    np.testing.assert_allclose(tempered(p, 2.0), np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(tempered(np.array([[1.0, 0.0]]), 3.0), [[1, 0]])


@pytest.mark.parametrize("name", ["lac", "aps"])
def test_the_size_by_definition(name: str) -> None:
    p, labels = drawn(120)
    scores = 1 - p
    if name == "aps":
        scores = np.array([[row[row >= row[c]].sum() for c in range(8)] for row in p])
    own = np.sort(scores[np.arange(120), labels])
    limit = own[int(np.ceil(121 * 0.9)) - 1]
    np.testing.assert_allclose(mean_size(p, labels, 0.9, name), (scores <= limit + 1e-6).sum(axis=1).mean(), atol=0.02)


def test_it_is_never_larger_than_that_of_the_probabilities_as_they_are() -> None:
    p, labels = drawn(2000)
    found = small_set_temperature(p, labels, 0.9, "aps")
    assert found != 1
    assert mean_size(tempered(p, found), labels, 0.9, "aps") < mean_size(p, labels, 0.9, "aps")
    # too few samples for a threshold leave it alone
    assert small_set_temperature(p[:5], labels[:5], 0.9, "aps") == 1


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_the_file_makes_sets_at_it(small: Small, data: dict[str, np.ndarray], score: str, tmp_path: Path) -> None:
    words = {"add": ["set"], "set_score": score, "device": "cpu", "eval": small.test}
    plain = tna_onnx.guard(small.model, small.calib, output=tmp_path / "p.onnx", **words)
    own = tna_onnx.guard(small.model, small.calib, output=tmp_path / "t.onnx", set_temperature="auto", **words)
    assert plain.set_temperature == 1
    assert own.fitted_on == 750
    # half of the samples give the threshold, so the band is wider
    assert own.decisions.coverage >= coverage_band(750, 0.95, 1500, 0.999)[0]
    if score == "aps":
        assert own.decisions.mean_set_size < plain.decisions.mean_set_size
    entries = {entry.key: entry.value for entry in onnx.load(tmp_path / "t.onnx").metadata_props}
    assert float(entries["tna_onnx.guard_set_temperature"]) == own.set_temperature
    assert json.loads(entries["tna_onnx.guard"])["set_temperature"] == "auto"


def test_a_number_is_taken_as_it_is(small: Small, data: dict[str, np.ndarray], tmp_path: Path) -> None:
    words = {"add": ["set"], "device": "cpu", "coverage": 90}
    tna_onnx.guard(small.model, small.calib, output=tmp_path / "t.onnx", set_temperature=2.0, **words)
    logits = run(small.model, data["x"])["logits"].astype(np.float64)
    p = tempered(np.exp(logits - logits.max(axis=1, keepdims=True)), 2.0)
    limit = np.sort(1 - p[np.arange(1500), data["y"]])[int(np.ceil(1501 * 0.9)) - 1]
    found = run(tmp_path / "t.onnx", data["x"])["set"]
    clear = np.abs(1 - p - limit) > 1e-5
    np.testing.assert_array_equal(found[clear], (1 - p <= limit)[clear])


@pytest.mark.parametrize("value", [0, -1.0, 1e6, float("nan"), "warm"])
def test_what_is_no_temperature(value: object) -> None:
    with pytest.raises(UsageError, match="set_temperature"):
        GuardSettings(set_temperature=value)  # type: ignore[arg-type]
