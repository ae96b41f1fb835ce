"""Text without a terminal: progress of each stage, and calibration without bins in words."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Small
from tests.numerics.bernoulli import confidences, scores
from tna_onnx import calibrate
from tna_onnx.pipeline.methods import FOLDS
from tna_onnx.render.progress_bars import Lines
from tna_onnx.render.wording import bin_free_lines, bin_free_rows, bin_free_sentence
from tna_onnx.results.details import BinFree

# --- Progress without a terminal: the end of each stage, a sign of life, and nothing where nothing is wanted


def test_one_line_a_stage_and_signs_of_life(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Lines(every=30, short=5)
    for at, *step in (
        (1, "collect", 2000, 2000), (6, "search", 0, 9), (7, "search", 3, 9), (36, "search", 4, 9),
        (37, "search", 5, 9), (40, "search", 9, 9), (40, "search", 9, 9), (41, "collect", 50, 50),
    ):  # fmt: skip
        now[0] = at
        progress(*step)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "so far, search: 0 of 9, 6 s",
        "so far, search: 4 of 9, 36 s, about 38 s left",
        "search: 9 of 9, 40 s",
        "collect: 50 of 50, 41 s",
    ]


def test_a_closed_stream_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open("/dev/null", "w")  # noqa: PTH123, SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    Lines(short=0)("search", 9, 9)


@pytest.mark.parametrize(
    ("search", "stages"),
    [
        ("auto", {"calibration data", "search", "cross-validate"}),
        ("sparse", {"calibration data", "search", "search in folds", "cross-validate"}),
    ],
)
def test_folds_and_methods_have_a_total(search: str, stages: set[str], small: Small, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", search=search, map="auto", device="cpu",
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert {stage for stage, _, _ in steps} >= stages
    validated = [(done, total) for stage, done, total in steps if stage == "cross-validate"]
    first = validated[: validated[0][1]]
    assert first == [(done, first[0][1]) for done in range(1, first[0][1] + 1)]
    assert first[0][1] % FOLDS == 0


def test_an_estimate_of_one_method_has_a_step_a_fold(small: Small, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", search="sparse", map="ts", device="cpu",
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert steps[-FOLDS:] == [("cross-validate", k + 1, FOLDS) for k in range(FOLDS)]


# --- Calibration without bins in words, of one model and of two


@pytest.fixture(scope="module")
def stages() -> tuple[BinFree, BinFree]:
    """Confidences that are ten points too high, and right ones."""
    confidence, hit = confidences(800, seed=0)
    return BinFree.of(scores(np.minimum(confidence + 0.1, 1), hit)), BinFree.of(scores(confidence, hit))


def test_lines_of_one_model(stages: tuple[BinFree, BinFree]) -> None:
    one = stages[0]
    first, second = bin_free_lines(one)
    assert first == (
        f"bin-free Kuiper {100 * one.cumulative.kuiper:.2f} % (p < 0.001); "
        f"ECE with less bias {100 * one.ece_debiased:.2f} %, by chance alone {100 * one.ece_expected:.2f} %"
    )
    parts = one.corp.nll
    assert second == (
        f"NLL      {parts.miscalibration:.4f} nats of it from miscalibrated confidence, "
        f"by chance alone {parts.expected:.4f}"
    )


def test_rows_have_a_cell_for_each_stage(stages: tuple[BinFree, BinFree]) -> None:
    for row in bin_free_rows(*stages):
        assert len(row) == 3
        assert all(row)
    parts = {title: values for title, *values in bin_free_rows(*stages)}
    assert parts["p-value of Kuiper"][0] == "< 0.001"
    assert parts["NLL: uncertainty, nats"][0] == f"{stages[0].corp.nll.uncertainty:.4f}"


def test_why_there_is_no_p_value() -> None:
    confidence, hit = confidences(800, seed=0)
    sampled = scores(confidence, hit)
    clustered = BinFree.of(replace(sampled, clusters=np.arange(800) // 2))
    assert "of one sample depend on one another" in bin_free_sentence(clustered, cross_fitted=False)
    fitted = BinFree.of(sampled, cross_fitted=True)
    assert "the errors of the folds partly cancel" in bin_free_sentence(fitted, cross_fitted=True)
    assert "(p " in bin_free_sentence(BinFree.of(sampled), cross_fitted=False)
