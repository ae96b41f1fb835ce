"""Calibration and held-out data in different forms: what goes together, and what each `Data` says of itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Small
from tests.pipeline.samples import few, opened
from tna_onnx.errors import CheckFailed, UnsupportedModel, UsageError
from tna_onnx.extraction.head_check import check_tail
from tna_onnx.pipeline.checking import checked_samples

MAP_ONLY: dict[str, Any] = {"search": "none", "device": "cpu", "dry_run": True, "fail_if_worse": False}


def forms(small: Small, path: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the same samples as data, as features and as logits."""
    data = few(path)
    task = opened(small, calib=data)
    features = np.array(task.calibration.table.features)
    assert task.head is not None
    logits = features @ task.head.weight.T + task.head.bias
    labels = data["labels"]
    return {
        "data": data,
        "features": {"features": features, "labels": labels},
        "logits": {"logits": logits, "labels": labels},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calib", "held_out"), [("data", "features"), ("features", "data"), ("logits", "data"), ("logits", "features")]
)
def test_forms_that_go_together_give_the_same_numbers(small: Small, calib: str, held_out: str) -> None:
    one, other = forms(small, small.calib), forms(small, small.test)
    report = tna_onnx.calibrate(small.model, one[calib], eval=other[held_out], **MAP_ONLY)
    plain = tna_onnx.calibrate(small.model, one["data"], eval=other["data"], **MAP_ONLY)
    for name in ("before", "after"):
        mine, expected = getattr(report.comparison, name), getattr(plain.comparison, name)
        assert vars(mine) == pytest.approx(vars(expected), abs=1e-5)


@pytest.mark.parametrize("calib", ["data", "features"])
def test_held_out_logits_beside_data_are_refused(small: Small, calib: str) -> None:
    with pytest.raises(UsageError, match="give both as logits, or both as data or features"):
        tna_onnx.calibrate(
            small.model, forms(small, small.calib)[calib], eval=forms(small, small.test)["logits"], **MAP_ONLY
        )


def test_samples_that_run_the_whole_file_are_checked_first(small: Small) -> None:
    """Features do not reach outputs that are computed around the head."""
    with np.load(small.test) as arrays:
        data = dict(arrays)
    features = {"features": np.array(opened(small, calib=data).calibration.table.features), "labels": data["labels"]}
    task = opened(small, calib=few(small.calib), held_out=features)
    assert len(features["labels"]) >= 512
    assert checked_samples(task) is task.calibration
    task = opened(small, calib=features, held_out=few(small.calib))
    assert checked_samples(task) is task.held_out


def test_held_out_data_speak_for_themselves(small: Small) -> None:
    held_out = tna_onnx.Data(few(small.test), classes=["a", "b", "c", "d", "e"])
    with pytest.raises(UsageError, match="other class names than calib"):
        tna_onnx.calibrate(small.model, few(small.calib), eval=held_out, **MAP_ONLY)
    held_out = tna_onnx.Data(few(small.test), expect_accuracy=99.9)
    with pytest.raises(CheckFailed, match=r"99\.9"):
        tna_onnx.calibrate(small.model, few(small.calib), eval=held_out, **MAP_ONLY)


def test_every_probed_class_of_a_tail_must_move_alone(small: Small) -> None:
    """Class vector 0 moves its own logit; class vector 1 moves logit 2 as well."""
    task = opened(small, calib=few(small.calib))
    head = task.head
    assert head is not None
    z = np.array(task.calibration.table.features[:8], np.float64)

    class Leaking:
        def logits(self, weight: np.ndarray | None) -> Any:
            w = np.array(head.weight if weight is None else weight, np.float64)
            w[2] += w[1] - head.weight[1]
            return lambda _: z @ w.T + head.bias

    logits = z @ head.weight.T.astype(np.float64) + head.bias
    with pytest.raises(UnsupportedModel, match=r"class vector 1 .* moves the logits of other classes too"):
        check_tail(task.model, dataclasses.replace(head, linear=False), Leaking(), {}, logits)  # type: ignore[arg-type]
