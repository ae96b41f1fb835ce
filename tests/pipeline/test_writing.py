"""How a result goes into the graph: which maps it can hold, folded or appended, and what the written model computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import Small
from tests.pipeline.samples import few, of_logits, opened, outcome_of, outputs, probabilities
from tna_onnx.errors import UnsupportedModel
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.averages import kept_part
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.writing import Writing

ALL = ("none", *maps_of(5))
NO_FEATURES = tuple(name for name in ALL if name == "none" or not MAPS[name].needs_features)
FOLDED = tuple(name for name in ALL if name == "none" or MAPS[name].foldable)
BENT = SmoothedIsotonic((((0.0, 0.5, 1.0), (0.0, -0.7, 0.0)),) * 5, temperature=2.0)


def variant(small: Small, path: Path, opset: int = 17, *, label: bool = False) -> Path:
    """Write `small` in another opset, or with a label that reads the scores in front of the logits."""
    model = onnx.load(small.model)
    model.opset_import[0].version = opset
    if label:
        model.graph.node[-1].output[0] = "raw"
        model.graph.node.append(helper.make_node("Identity", ["raw"], ["logits"], name="identity"))
        model.graph.node.append(helper.make_node("ArgMax", ["raw"], ["label"], axis=1, keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]))
    onnx.save(model, path)
    return path


def test_without_a_head_maps_that_read_features_are_refused(small: Small) -> None:
    writing = Writing(of_logits(small), fold=True)
    assert writing.maps == NO_FEATURES
    with pytest.raises(UnsupportedModel, match="map aar reads the features of a linear head"):
        writing.require("aar")
    assert writing.folding(outcome_of(writing.task, Temperature(2.0))) is None


def test_maps_for_two_classes_are_refused_for_more(task: Task) -> None:
    writing = Writing(task, fold=True)
    for name in set(maps_of(2)) - set(ALL):
        with pytest.raises(UnsupportedModel, match=f"map {name} is for two classes, and this model has 5"):
            writing.require(name)


def test_an_old_opset_takes_what_can_be_folded(small: Small, tmp_path: Path) -> None:
    """Clip knows float64 from opset 12 on, and every map that is appended may need it."""
    task = opened(small, variant(small, tmp_path / "m.onnx", 11), few(small.calib))
    writing = Writing(
        replace(task, probed=replace(task.probed, readout=replace(task.readout, logits_type="float64"))), True
    )
    assert writing.maps == writing.choices == FOLDED
    with pytest.raises(UnsupportedModel, match="opset 12 or newer"):
        writing.require("isotonic")


def test_an_old_opset_takes_no_bias_that_would_need_a_node(small: Small, tmp_path: Path) -> None:
    """A factor can go into the weight; a shift has no place, and an Add behind the logits may be no better off."""
    model = onnx.load(small.model)
    del model.graph.node[-1].input[2:]
    model.opset_import[0].version = 11
    onnx.save(model, tmp_path / "m.onnx")
    task = opened(small, tmp_path / "m.onnx", few(small.calib))
    readout = replace(task.readout, logits_type="float64")
    writing = Writing(replace(task, probed=replace(task.probed, readout=readout)), fold=True)
    assert writing.maps == writing.choices == ("none", "ts")


@pytest.mark.parametrize(("fold", "choices"), [(True, {*FOLDED, "ets"}), (False, {"none", "ts", "ets"})])
def test_scores_that_others_read_allow_what_is_folded(
    small: Small, tmp_path: Path, choices: set[str], *, fold: bool
) -> None:
    """And what keeps the order of the classes, so that the label stays right."""
    writing = Writing(opened(small, variant(small, tmp_path / "m.onnx", label=True), few(small.calib)), fold)
    assert writing.maps == ALL  # the graph can hold them, but the label would not see them
    assert set(writing.choices) == choices
    if not fold:
        writing.write(outcome_of(writing.task, Temperature(2.0)), {})
        with pytest.raises(UnsupportedModel, match=r"'raw', from which labels are read, would not follow"):
            writing.write(outcome_of(writing.task, BENT), {})


@pytest.mark.parametrize("fold", [True, False])
def test_a_temperature_goes_into_weight_and_bias_or_behind_the_logits(task: Task, small: Small, *, fold: bool) -> None:
    outcome = outcome_of(task, Temperature(3.0))
    writing = Writing(task, fold)
    folding = writing.folding(outcome)
    assert (folding is None) is not fold
    written = writing.write(outcome, {})
    assert bool(written.nodes) is not fold
    assert written.changed == ({"weight", "bias"} if fold else set())
    x = few(small.test)["x"]
    # three float32 roundings of logits up to about 60
    np.testing.assert_allclose(outputs(written.proto, x)[0], outputs(small.model, x)[0] / 3, atol=3e-5)
    entries = {e.key: e.value for e in written.proto.metadata_props}
    assert entries.keys() == {"team", "tna_onnx.change", "tna_onnx.seal"}
    assert entries["team"] == "unchanged"


def test_a_folded_weight_is_rounded_once(task: Task) -> None:
    assert task.weight is not None
    (tensor,) = (
        t for t in Writing(task, fold=True).write(outcome_of(task, Temperature(3.0)), {}).proto.graph.initializer
        if t.name == "weight"
    )  # fmt: skip
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), task.weight * np.float32(1 / 3))


def test_a_map_and_a_new_weight_together(task: Task, small: Small) -> None:
    assert task.head is not None
    weight = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    written = Writing(task, fold=True).write(outcome_of(task, BENT, weight, angle=20.0), {"seed": "0"})
    x = few(small.test)["x"]
    bias = kept_part(task.head.weight, weight) * task.head.bias
    p = probabilities((few_features(task, small) @ weight.T.astype(np.float64) + bias) / 2)
    f = p * np.exp(np.interp(p, [0, 0.5, 1], [0, -0.7, 0]))
    np.testing.assert_allclose(probabilities(outputs(written.proto, x)[0]), f / f.sum(axis=1, keepdims=True), atol=1e-5)
    entries = {e.key: e.value for e in written.proto.metadata_props}
    assert entries.keys() == {"team", "tna_onnx.seed", "tna_onnx.change", "tna_onnx.seal"}
    assert (entries["team"], entries["tna_onnx.seed"]) == ("unchanged", "0")


def few_features(task: Task, small: Small) -> np.ndarray[Any, np.dtype[np.float64]]:
    hidden = next(t for t in task.model.proto.graph.initializer if t.name == "hidden")
    return np.maximum(few(small.test)["x"].astype(np.float64) @ numpy_helper.to_array(hidden), 0)
