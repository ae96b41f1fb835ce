"""Every script in `benchmarks/` can be imported and shows its help; the benchmark of harm counts what it says.

mypy checks the calls into the package.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8"))
# A name that is missing in these is a mistake; any other one is a library that is not installed.
OWN = {"tna_onnx", "tests", *(path.stem for path in FOLDER.rglob("*.py"))}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the source archive has no benchmarks")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_shows_its_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(script.parent)  # as Python does for a script
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in OWN:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name}")


@pytest.fixture
def harm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmark of harm."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(FOLDER)

    def load(name: str) -> Any:
        return importlib.import_module(f"harm_{name}")

    return load


def test_harm_has_pairs_of_all_kinds(harm: Any) -> None:
    pairs = harm("pairs")
    without_files = [pair for pair in pairs.PAIRS if pair.data != "cifar10"]
    assert len(without_files) >= 40
    assert len({pair.name for pair in pairs.PAIRS}) == len(pairs.PAIRS)
    assert {group for pair in without_files for group in pair.groups} == set(pairs.GROUPS)
    assert all(200 <= pair.calibration <= 5000 for pair in pairs.PAIRS)
    # a calibrated model would dilute the gains of the others
    assert all(pair.groups == ("calibrated",) for pair in pairs.PAIRS if pair.drawn)
    made, trained = harm("problems").DATA, harm("problems").MODELS
    assert all(pair.data in made and pair.model in trained for pair in without_files if pair.data != "demo")


def test_a_group_is_in_one_part_of_a_split_and_copies_are_near(harm: Any, tmp_path: Path) -> None:
    pair, problems = harm("pairs").Pair, harm("problems")
    features = np.arange(400, dtype=np.float32)[:, None] + np.zeros((1, 2), np.float32)
    np.savez(tmp_path / "pool.npz", features=features, labels=np.arange(400) % 2)
    grouped = problems.split(pair("binary", "forest", 200, "groups"), tmp_path / "pool.npz", 0)
    first, second = (np.unique(part.features[:, 0] // 10) for part in (grouped.calibration, grouped.test))
    assert len(first) == len(second) == 20
    assert not set(first) & set(second)
    copied = problems.split(pair("binary", "forest", 200, "copies"), tmp_path / "pool.npz", 0)
    z = copied.calibration.features[:, 0].reshape(50, 4)
    assert np.ptp(z, axis=1).max() < 0.2 * features.std()
    assert np.all(copied.calibration.labels.reshape(50, 4) == copied.calibration.labels[::4, None])


@pytest.mark.parametrize(("percent", "classes"), [(5, 10), (20, 2)])
def test_wrong_labels_are_as_many_as_it_says(harm: Any, percent: int, classes: int) -> None:
    labels = np.arange(20_000) % classes
    _, wrong = harm("problems").shift(labels[:, None], labels, f"labels-{percent}", np.random.default_rng(0))
    share = percent / 100 * (1 - 1 / classes)  # a draw from all classes may be the right one
    assert binomtest(int((wrong != labels).sum()), len(labels), share).pvalue > 0.001


def test_a_class_that_loses_recall_is_seen(harm: Any) -> None:
    runs = harm("runs")
    labels = np.repeat([0, 1], [900, 100])
    sure, other = np.array([0.9, 0.1]), np.array([0.1, 0.9])
    before = runs.Scores.of(np.where(labels[:, None] == 0, sure, other), labels)
    after = runs.Scores.of(np.where((np.arange(1000) < 915)[:, None], sure, other), labels)
    assert runs.loses_recall(before, after)
    assert not runs.loses_recall(before, before)
    assert after.metrics()["balanced"] == pytest.approx((1 + 0.85) / 2)
    assert after.metrics()["worst_recall"] == pytest.approx(0.85)


def test_harm_scores_by_definition(harm: Any) -> None:
    scores = harm("runs")
    found = scores.Scores.of(np.array([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [0.2, 0.2, 0.6]]), np.array([0, 2, 2]))
    eps = np.finfo(float).eps
    np.testing.assert_allclose(found.nll, -np.log([0.5, eps, 0.6]))
    np.testing.assert_allclose(found.brier, [0.25 + 0.09 + 0.04, 0.01 + 0.81 + 1, 0.04 + 0.04 + 0.16])
    assert found.metrics()["accuracy"] == pytest.approx(2 / 3)
    # each in a bin of its own
    assert found.metrics()["ece"] == pytest.approx((0.5 + 0.9 + 0.4) / 3)
    assert scores.ece_of_parts(found, 4) is None
    assert scores.ece_of_parts(found, 1) == pytest.approx((0.5 + 0.9 + 0.4) / 3)
    for bad in (np.array([[np.nan, 1.0]]), np.array([[0.5, 0.4]])):
        with pytest.raises(ValueError, match="sum to 1"):
            scores.Scores.of(bad, np.array([0]))


def test_a_change_is_significant_as_often_as_it_should_be(harm: Any) -> None:
    significant = harm("runs").significant
    rng = np.random.default_rng(0)
    signs = np.array([significant(rng.standard_normal(300)) for _ in range(2000)])
    for sign in (1, -1):  # 2.5 % each
        assert binomtest(int((signs == sign).sum()), 2000, 0.025).pvalue > 0.001
    assert significant(np.full(50, 0.1)) == 1
    assert significant(np.full(50, -1e-9)) == 0  # rounding
    assert significant(np.zeros(50)) == 0


@pytest.mark.parametrize("hits", [0, 1, 7, 20])
def test_the_interval_of_a_share_is_exact(harm: Any, hits: int) -> None:
    expected = binomtest(hits, 20).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(harm("runs").exact_interval(hits, 20), [expected.low, expected.high], rtol=1e-9)


def made_up(pair: str, split: int, method: str, change: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A run whose log loss changes by so much, significantly."""
    metrics = dict.fromkeys(("nll", "brier", "ece", "accuracy", "balanced", "worst_recall"), 0.5)
    deltas = {f"d_{name}": 0.0 for name in metrics} | {"d_nll": change}
    signs = {"nll_change": int(np.sign(change)), "accuracy_change": 0, "class_loses": False, "changed": 0.0}
    return {"pair": pair, "split": split, "method": method, "seconds": 1.0, **metrics, **deltas, **signs} | fields


def default(pair: str, split: int, change: float, *, refused: bool = False, verdict: int = 0) -> dict[str, Any]:
    ours = {"verdict": verdict, "refused": refused, "unchanged": False, "chosen": "ts, 0", "bias": {"nll": 0.25}}
    return made_up(pair, split, "default", change, **ours)


def test_a_refused_result_counts_as_the_input_and_an_error_too(harm: Any) -> None:
    summary = harm("page")
    runs = [made_up("a", split, "input") for split in range(4)]
    runs += [
        default("a", 0, 0.2),
        default("a", 1, 0.4, refused=True, verdict=1),
        default("a", 2, -0.1, verdict=1),
        {"pair": "a", "split": 3, "method": "default", "seconds": 1.0, "left_out": "every sample is right"},
    ]
    cells = summary.cells_of(runs)
    left = cells["a", "default"]
    assert (left["runs"], left["refused"], left["improved"], left["nll_worse"]) == (4, 2, 1, 1)
    assert left["d_nll"] == pytest.approx((0.2 - 0.1) / 4)
    ungated = cells["a", summary.UNGATED]
    assert (ungated["runs"], ungated["nll_worse"], ungated["left_out"]) == (3, 2, ["every sample is right"])
    hits, of, low, high = summary.rate(cells, ["a"], "default", "nll_worse")
    assert (hits, of) == (1, 4)
    assert low < 0.25 < high


def test_the_best_peer_ran_everywhere_and_the_oracle_knows_the_test_data(harm: Any) -> None:
    runs = []
    for pair, own, one, other in (("a", -0.2, -0.3, -0.9), ("b", -0.4, -0.1, None)):
        runs += [made_up(pair, 0, "input"), default(pair, 0, own), made_up(pair, 0, "netcal logistic", one)]
        runs += [made_up(pair, 0, "ts", own - 0.1 if pair == "a" else 0.1)]
        if other is not None:
            runs.append(made_up(pair, 0, "probmetrics SMS", other))
    summary = harm("page")
    found = summary.share_of_best_peer(summary.cells_of(runs), ["a", "b"])
    assert found["peer"] == "netcal logistic"
    assert found["gain"] == pytest.approx(0.3)
    assert found["peer_gain"] == pytest.approx(0.2)
    # ts on the first pair, the input on the second
    assert found["oracle"] == pytest.approx(0.15)


@pytest.mark.slow
def test_harm_runs_quickly_and_never_twice(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "benchmarks/harm.py", "--quick", "--splits", "1", "--work", str(tmp_path), "--output"]
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    first, second = tmp_path / "first.md", tmp_path / "second.md"
    outputs = [
        subprocess.run(
            [*command, str(page)], cwd=FOLDER.parent, env=environment, check=True, capture_output=True, text=True
        ).stdout
        for page in (first, second)
    ]
    assert "4 of 4" in outputs[0]
    assert " of 4" not in outputs[1]
    assert first.read_text("utf-8") == second.read_text("utf-8")
    assert "\n## Gains and harm\n" in first.read_text("utf-8")
    cells = json.loads(first.with_suffix(".json").read_text("utf-8"))["cells"]
    ran = {cell["method"] for cell in cells if cell["runs"]}
    assert {"input", "default", "TNA", "ts", "scikit-learn sigmoid"} <= ran
    # what is no gain by construction is none: a temperature cannot move a calibrated model far
    drawn = [cell for cell in cells if "drawn" in cell["pair"] and cell["method"] == "ts"]
    assert drawn
    assert all(abs(cell["d_nll"]) < 0.01 for cell in drawn)
