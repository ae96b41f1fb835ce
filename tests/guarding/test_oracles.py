"""Sets, thresholds and intervals against independent libraries, on the same scores."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import guard, run
from tests.support import with_options
from tna_onnx.numerics.conformal import (
    accept_above,
    conformal_quantile,
    coverage_band,
    errorless_needed,
    rank_penalty,
    set_scores,
    share_interval,
    small_set_penalty,
)
from tna_onnx.numerics.outliers import area_under


def mapie_sets(score: str, p: np.ndarray, y: np.ndarray, new: np.ndarray, level: float, *_: float) -> np.ndarray:
    mapie = pytest.importorskip("mapie.classification")
    base = pytest.importorskip("sklearn.base")

    class Given(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]
        """Takes its inputs for probabilities."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)

    predictor = mapie.SplitConformalClassifier(
        Given().fit(p, y), confidence_level=level, conformity_score=score, prefit=True, random_state=0
    )
    predictor.conformalize(p, y)
    return np.asarray(predictor.predict_set(new)[1][:, :, 0], bool)


def torchcp_sets(
    score: str, p: np.ndarray, y: np.ndarray, new: np.ndarray, level: float, free: int, weight: float
) -> np.ndarray:
    torch = pytest.importorskip("torch")
    found = importlib.util.find_spec("torchcp")
    if found is None or found.origin is None:
        pytest.skip("torchcp is not installed")
    # its package imports libraries of graphs and sorting that its scores do not need
    for name in ("torchcp", "torchcp.classification"):
        module = types.ModuleType(name)
        module.__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    try:
        scores = importlib.import_module("torchcp.classification.score")
        predictor = importlib.import_module("torchcp.classification.predictor")
        made = {
            "lac": lambda: scores.LAC(score_type="identity"),
            "aps": lambda: scores.APS(score_type="identity"),
            "raps": lambda: scores.RAPS(score_type="identity", penalty=weight, kreg=free),
        }[score]()
        split = predictor.SplitPredictor(made, alpha=1 - level)
        with pytest.MonkeyPatch.context() as patch:
            # the mean of its random part
            patch.setattr(torch, "rand", lambda *shape, **_: torch.full(torch.empty(*shape).shape, 0.5))
            split.calculate_threshold(torch.tensor(p), torch.tensor(y), alpha=1 - level)
            return np.asarray(split.predict_with_logits(torch.tensor(new)).numpy(), bool)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchcp"]:
            del sys.modules[name]


ORACLES = [(mapie_sets, "lac"), (torchcp_sets, "lac"), (torchcp_sets, "aps"), (torchcp_sets, "raps")]


@pytest.fixture(scope="module")
def softer(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recalibrate the model: its own probabilities round to 1, and many of their sums are equal."""
    path = tmp_path_factory.mktemp("softer") / "s.onnx"
    with_options(tna_onnx.calibrate, small.model, small.test, output=path, search="none", map="ts", device="cpu")
    return path


@pytest.mark.parametrize(("oracle", "score"), ORACLES, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.filterwarnings("ignore:The .temperature. parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize("level", [80, 95])
def test_sets(
    softer: Path, small: Small, data: dict[str, np.ndarray], oracle: Any, score: str, level: float, tmp_path: Path
) -> None:
    """APS and RAPS of MAPIE have a random part in their scores, so that no two runs agree; TorchCP's is set to 1/2."""
    p, new = (softmax(run(softer, data[name])["logits"].astype(np.float64), axis=1) for name in ("x", "new"))
    path = tmp_path / "g.onnx"
    result = guard(softer, small.calib, path, add=["set"], set_score=score, allow_empty=True, coverage=level)
    y = data["y"]
    fresh = np.ones(len(y), np.bool_)
    # the penalty of raps is chosen on one half
    fresh[np.random.default_rng(0).permutation(len(y))[: result.fitted_on]] = False
    expected = oracle(score, p[fresh], y[fresh], new, level / 100, result.set_free_classes, result.set_penalty)
    found = run(path, data["new"])["set"]
    differ = np.argwhere(found != expected)
    # the graph computes in float32: one or two scores lie so close to the threshold that they fall on the other side
    assert len(differ) <= 2, differ


def drawn(classes: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of 3,000 samples; too sure where the sharpness is above 1."""
    rng = np.random.default_rng(classes)
    z = 2.2 * rng.standard_normal((3000, classes))
    return softmax(sharpness * z, axis=1), np.argmax(z + rng.gumbel(size=z.shape), axis=1)


@pytest.mark.parametrize(
    ("score", "classes", "sharpness"), [("aps", 8, 1.0), ("raps", 30, 1.6), ("aps", 100, 0.8), ("raps", 8, 1.0)]
)
@pytest.mark.filterwarnings("ignore:The .temperature. parameter is deprecated:DeprecationWarning")
def test_adaptive_sets_are_not_larger_than_those_of_mapie(score: str, classes: int, sharpness: float) -> None:
    """By more than a fifth, at 90 and 95 %."""
    p, y = drawn(classes, sharpness)
    fit, calib, new = slice(0, 1000), slice(1000, 2000), slice(2000, None)
    for level in (0.9, 0.95):
        penalty = np.zeros(classes)
        if score == "raps":
            penalty = rank_penalty(classes, *small_set_penalty(p[fit], y[fit], level))
        order, scores = set_scores(p, penalty)
        own = np.take_along_axis(scores, np.argmax(order == y[:, None], axis=1)[:, None], axis=1)[:, 0]
        held = scores[new] <= conformal_quantile(own[calib], level)
        low, high = coverage_band(1000, level, 1000, 0.999)
        assert low <= np.mean(own[new] <= conformal_quantile(own[calib], level)) <= high
        assert held.sum(axis=1).mean() <= 1.2 * mapie_sets(score, p[calib], y[calib], p[new], level).sum(axis=1).mean()


def by_definition(confidence: np.ndarray, hit: np.ndarray, risk: float, delta: float) -> int:
    """How many samples are accepted: the tests of the docstring one after the other."""
    n = len(confidence)
    order = np.argsort(-confidence)
    first = errorless_needed(risk, delta)
    starts = [round(first * (n / first) ** (k / 3)) for k in range(3)]
    steps = [first]
    while steps[-1] < n:
        steps.append(min(n, steps[-1] + max(1, steps[-1] // 200)))
    falling = confidence[order]
    # samples of one confidence are accepted together
    steps, starts = ([int(np.sum(falling >= falling[rank - 1])) for rank in ranks] for ranks in (steps, starts))
    level, passed = 0.0, 0
    for rank in sorted({*steps, *starts}):
        level += delta / 3 * starts.count(rank)
        wrong = int((~hit[order[:rank]]).sum())
        if stats.binom.cdf(wrong, rank, risk) <= level:
            passed = rank
        else:
            level = 0.0
    return passed


@pytest.mark.parametrize("risk", [15, 25])
def test_accept(small: Small, data: dict[str, np.ndarray], risk: float, tmp_path: Path) -> None:
    guard(small.model, small.calib, tmp_path / "g.onnx", add=["confidence", "accept"], risk=risk)
    found = run(tmp_path / "g.onnx", data["x"])
    hit = found["logits"].argmax(axis=1) == data["y"]
    accepted = by_definition(found["confidence"], hit, risk / 100, 0.05)
    assert 0 < accepted < len(hit)
    assert found["accept"].sum() == accepted
    assert found["confidence"][found["accept"]].min() > found["confidence"][~found["accept"]].max()


def test_more_risk_accepts_more() -> None:
    rng = np.random.default_rng(3)
    confidence = np.maximum(0.1, 1 - rng.exponential(0.05, 2000)).astype(np.float32)
    hit = rng.random(2000) < confidence
    assert accept_above(confidence, hit, 0.0001, 0.1) is None
    found = [accept_above(confidence, hit, risk, 0.1) for risk in (0.02, 0.05, 0.3)]
    assert None not in found
    assert np.all(np.diff(np.float32(found)) <= 0)


@pytest.mark.parametrize(("count", "n"), [(0, 30), (3, 30), (30, 30), (123, 4567)])
def test_clopper_pearson(count: int, n: int) -> None:
    """By quantiles of the beta distribution (Clopper and Pearson 1934), and statsmodels where it is installed."""
    low = 0.0 if count == 0 else stats.beta.ppf(0.025, count, n - count + 1)
    high = 1.0 if count == n else stats.beta.ppf(0.975, count + 1, n - count)
    np.testing.assert_allclose(share_interval(np.arange(n) < count, 0.95), (low, high), rtol=1e-9)


def test_clopper_pearson_of_statsmodels() -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    expected = proportion.proportion_confint(7, 90, 0.05, "beta")
    np.testing.assert_allclose(share_interval(np.arange(90) < 7, 0.95), expected, rtol=1e-9)


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_roc(decimals: int) -> None:
    """With ties and without."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    known = np.round(rng.standard_normal(300), decimals)
    unknown = np.round(rng.standard_normal(90) + 1, decimals)
    truth = np.repeat([0, 1], [300, 90])
    scores = np.concatenate([known, unknown])
    np.testing.assert_allclose(area_under(known, unknown), metrics.roc_auc_score(truth, scores), rtol=1e-12)
