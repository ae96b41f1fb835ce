"""How a result goes into the graph and the metadata, and the check of the written file against the numerics."""

import copy
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import small_model
from tests.conftest import Small
from tests.pipeline.samples import few, of_logits, opened, outcome_of, outputs, probabilities, with_settings
from tna_onnx.errors import CheckFailed, UnsupportedModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.nodes import NodeOps
from tna_onnx.graph.readers import UNCHANGED, OutputChange
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.ops import ArrayOps
from tna_onnx.pipeline import checking as rounding
from tna_onnx.pipeline.checking import FileCheck, check_file, checked_samples, probability_bounds
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.writing import Shipped, Writing, provenance_entries
from tna_onnx.runtime import Device
from tna_onnx.runtime.session import CUDA

ALL = ("none", *maps_of(5))
NO_FEATURES = tuple(name for name in ALL if name == "none" or not MAPS[name].needs_features)
FOLDED = tuple(name for name in ALL if name == "none" or MAPS[name].foldable)
AUTOMATIC = tuple(name for name in FOLDED if name == "none" or MAPS[name].max_classes_of_auto != 0)
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


def with_readout(task: Task, **fields: Any) -> Task:
    return replace(task, probed=replace(task.probed, readout=replace(task.readout, **fields)))


def test_without_a_head_maps_that_read_features_are_refused(small: Small) -> None:
    writing = Writing(of_logits(small))
    assert writing.maps == NO_FEATURES
    with pytest.raises(UnsupportedModel, match="map aar reads the features of a linear head"):
        writing.require("aar")
    assert writing.folding(outcome_of(writing.task, Temperature(2.0))) is None


def test_an_old_opset_takes_what_can_be_folded(small: Small, tmp_path: Path) -> None:
    """Clip knows float64 from opset 12 on, and every map that is appended may need it."""
    task = opened(small, variant(small, tmp_path / "m.onnx", 11), few(small.calib))
    writing = Writing(with_readout(task, logits_type="float64"))
    assert (writing.maps, writing.choices) == (FOLDED, AUTOMATIC)
    with pytest.raises(UnsupportedModel, match="opset 12 or newer"):
        writing.require("isotonic")


def test_an_old_opset_takes_no_bias_that_would_need_a_node(small: Small, tmp_path: Path) -> None:
    """A factor can go into the weight; a shift has no place, and an Add behind the logits may be no better off."""
    model = onnx.load(small.model)
    del model.graph.node[-1].input[2:]
    model.opset_import[0].version = 11
    onnx.save(model, tmp_path / "m.onnx")
    writing = Writing(with_readout(opened(small, tmp_path / "m.onnx", few(small.calib)), logits_type="float64"))
    assert writing.maps == writing.choices == ("none", "ts")


@pytest.mark.parametrize("fold", [True, False])
def test_a_label_in_front_of_the_logits_leaves_every_map_a_choice(small: Small, tmp_path: Path, *, fold: bool) -> None:
    """It stays as it is; or it becomes the likeliest class, which a map in the weight makes it as well."""
    task = opened(small, variant(small, tmp_path / "m.onnx", label=True), few(small.calib))
    kept = Writing(with_settings(task, fold=fold))
    assert {*AUTOMATIC, "ets"} <= set(kept.choices)
    assert kept.other_outputs("bias") == OutputChange(("label",))
    assert kept.other_outputs("ts") == UNCHANGED
    changed = Writing(with_settings(task, fold=fold, predictions="change"))
    assert set(changed.choices) == set(kept.choices)
    assert changed.other_outputs("bias") == OutputChange((), ("label",), tuple(range(task.readout.n_classes)))
    for writing in (kept, changed):
        writing.write(outcome_of(writing.task, BENT), {})


def test_a_folded_weight_is_rounded_once(task: Task) -> None:
    assert task.weight is not None
    (tensor,) = (
        t for t in Writing(task).write(outcome_of(task, Temperature(3.0)), {}).proto.graph.initializer
        if t.name == "weight"
    )  # fmt: skip
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), task.weight * np.float32(1 / 3))


def test_a_map_and_a_new_weight_together(task: Task, small: Small) -> None:
    weight = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    written = Writing(task).write(outcome_of(task, BENT, weight, angle=20.0), {"seed": "0"})
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


# ---- The check of a written file: what passes, and that what is wrong by ten times the rounding bound does not


ROWS = np.arange(512)


def check(task: Task, p: np.ndarray) -> Any:
    """Check a file that gives these probabilities, as logits."""
    shipped = Shipped(task.logits(task.weight), Temperature(2.0))
    return FileCheck(task, task.calibration, shipped).probabilities(ROWS, np.log(p))


@pytest.fixture(scope="module")
def exact(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities (512, 5) that are right, and the bounds on them."""
    assert task.head is not None
    z = task.calibration.table.features[ROWS].astype(np.float64)
    s = np.asarray(task.logits(task.weight).at(ROWS), np.float64)
    powers = np.exp(s / 2)
    return powers / powers.sum(axis=1, keepdims=True), probability_bounds(task, z, s, Temperature(2.0))


def moved(p: np.ndarray, by: np.ndarray | float) -> np.ndarray:
    """Move so much probability from the largest class to the smallest one."""
    out = p.copy()
    rows = np.arange(len(p))
    out[rows, p.argmax(axis=1)] -= by
    out[rows, p.argmin(axis=1)] += by
    return out


def test_right_probabilities_pass_and_the_numbers_are_those(task: Task, exact: tuple[np.ndarray, np.ndarray]) -> None:
    p, bound = exact
    verification = check(task, moved(p, bound / 20))
    assert verification.samples == 512
    assert verification.max_difference == pytest.approx(np.max(bound) / 20, rel=1e-3)
    assert verification.bound == pytest.approx(np.max(bound), rel=1e-9)


@pytest.mark.parametrize("times", [1.01, 10.0])
def test_one_sample_beyond_its_bound_is_named(task: Task, exact: tuple[np.ndarray, np.ndarray], times: float) -> None:
    p, bound = exact
    by = np.zeros(512)
    by[137] = times * bound[137]
    with pytest.raises(CheckFailed, match=r"gives sample 137 of arrays .* a probability"):
        check(task, moved(p, by))


def test_a_quantised_output_is_off_by_half_a_step_everywhere(task: Task, exact: tuple[np.ndarray, np.ndarray]) -> None:
    """Rounding to steps of 0.004 is no error; ten times the bound of one sample, or a step too many of all, is one."""
    p, bound = exact
    step = 0.004
    coarse = with_readout(task, output_step=step)
    rounded = np.maximum(np.rint(p / step) * step, 1e-12)
    by = np.abs(rounded - p).max(axis=1)
    assert np.mean(by) > (np.mean(bound) + step) / 10
    assert check(coarse, moved(p, by)).samples == 512
    one = by.copy()
    one[137] = 10 * (bound[137] + step)
    with pytest.raises(CheckFailed, match="gives sample 137"):
        check(coarse, moved(p, one))
    with pytest.raises(CheckFailed, match="too much for rounding"):
        check(coarse, moved(p, bound + 0.9 * step))


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_weight_that_is_wrong_by_ten_times_the_bound_is_caught(
    task: Task, small: Small, tmp_path: Path, exact: tuple[np.ndarray, np.ndarray], part: str
) -> None:
    """One number of the file is off, by what moves its most exposed sample ten times as far as rounding may."""
    p, bound = exact
    outcome = outcome_of(task, Temperature(2.0))
    rewritten = Writing(task).write(outcome, provenance_entries(Writing(task), outcome))
    tensor = next(t for t in rewritten.proto.graph.initializer if t.name == part)
    value = numpy_helper.to_array(tensor).copy()
    # p_0 moves by p_0 (1 - p_0) of what its logit moves; that of weight [0, 3] is the third feature
    features = task.calibration.table.features[ROWS, 3] if part == "weight" else np.ones(512)
    reach = p[:, 0] * (1 - p[:, 0]) * features / bound
    value[(0, 3) if part == "weight" else 0] += np.float32(10 / reach.max())
    path = tmp_path / "o.onnx"
    onnx.save(rewritten.proto, path)
    file_check = FileCheck(task, checked_samples(task), Writing(task).shipped(outcome, checked_samples(task)))
    assert file_check.run(path, checker=check_file(task.model, path)).samples == 512
    tensor.CopyFrom(numpy_helper.from_array(value, part))
    onnx.save(rewritten.proto, path)
    with pytest.raises(CheckFailed, match="from what tna-onnx computed"):
        file_check.run(path, checker=True)
    with pytest.raises(CheckFailed, match=f"tensor {part}: values"):
        check_file(task.model, path)


def test_a_node_that_nobody_announced_is_a_difference(task: Task, tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(task.model.proto)
    proto.graph.node[1].name = "renamed"
    onnx.save(proto, tmp_path / "o.onnx")
    with pytest.raises(CheckFailed, match="does not say how it was made"):
        check_file(task.model, tmp_path / "o.onnx")


def test_the_checker_may_refuse_only_what_it_refuses_in_the_source(small: Small, tmp_path: Path) -> None:
    proto = onnx.load(small.model)
    proto.graph.node.append(helper.make_node("Relu", ["logits"], ["unused"], name="odd", nothing=1))
    onnx.save(proto, tmp_path / "m.onnx")
    source = load_model(tmp_path / "m.onnx")
    assert check_file(source, tmp_path / "m.onnx") is False
    assert check_file(load_model(small.model), small.model) is True


@pytest.mark.parametrize("size", [64, 512, 1024, 1])
def test_on_cuda_batches_are_those_of_the_collection(task: Task, size: int) -> None:
    n = len(task.source)
    on_cuda = replace(task, provider=CUDA, batch_size=size)
    rows = FileCheck(on_cuda, task.calibration, Shipped(task.logits(task.weight), None)).rows()
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= max(512, size)
    assert len(rows) >= min(n, 512) - size
    collected = [np.arange(start, min(start + size, n)).tolist() for start in range(0, n, size)]
    # a source cuts the rows that it is given into batches
    for start in range(0, len(rows), size):
        assert rows[start : start + size].tolist() in collected


# ---- What a written file says about itself: enough to repeat the run, nothing that differs when it is repeated


def test_the_same_data_elsewhere_give_the_same_entries_and_other_data_others(
    task: Task, small: Small, tmp_path: Path
) -> None:
    here = provenance_entries(Writing(task), outcome_of(task))
    moved = Small(tmp_path / "m.onnx", tmp_path / "c.npz", small.test)
    shutil.copy(small.model, moved.model)
    shutil.copy(small.calib, moved.calib)
    there = opened(moved)
    assert provenance_entries(Writing(there), outcome_of(there)) == here
    other = opened(small, calib=small.test)
    entries = provenance_entries(Writing(other), outcome_of(other))
    assert {name for name in here if entries[name] != here[name]} == {"calibration_sha256", "calibration_sketch"}


def test_a_map_of_features_says_not_to_quantise_behind_it(small: Small, tmp_path: Path) -> None:
    for name, told in (("aar", True), ("ts", False)):
        target = tmp_path / f"{name}.onnx"
        tna_onnx.calibrate(
            small.model, small.calib, search="none", map=name, output=target, gates=tna_onnx.Gates(require="nothing")
        )
        keys = {entry.key for entry in onnx.load(target).metadata_props}
        assert ("tna_onnx.quantization" in keys) == told


# --- The bound on what rounding may do to a probability: from its formula, and from rounding that really happens


EPS = 2.0**-23  # of float32


def features_and_logits(task: Task, samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    z = task.calibration.table.features[:samples].astype(np.float64)
    return z, z @ task.head.weight.T.astype(np.float64) + task.head.bias


def test_the_formula_by_a_loop(task: Task) -> None:
    z, s = features_and_logits(task, 3)
    head = task.head
    for row, bound in zip(z, probability_bounds(task, z, s, None), strict=True):
        a = max(sum(abs(x * w) for x, w in zip(row, head.weight[c], strict=True)) + abs(head.bias[c]) for c in range(5))
        assert bound == pytest.approx(8 * EPS * a + 1e-6, rel=1e-9)


def test_a_coarse_type_is_bounded_by_random_signs(task: Task) -> None:
    """Float16: half of the root of the sum of squares plus half of the logit, not the sum of all terms."""
    z, s = features_and_logits(task, 3)
    z, s = z / 300, s / 300
    half = with_readout(task, logits_type="float16")
    head = task.head
    for row, bound in zip(z, probability_bounds(half, z, s, None), strict=True):
        terms = [[*(row * w), b] for w, b in zip(head.weight, head.bias, strict=True)]
        a = max((math.hypot(*each) + abs(math.fsum(each))) / 2 for each in terms)
        assert bound == pytest.approx(min(0.05, 8 * 2.0**-10 * a + 1e-6), rel=1e-6)


def test_a_step_of_every_feature_moves_a_logit_by_the_length_of_its_vector(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, s = features_and_logits(task)
    head = task.head
    plain = probability_bounds(task, z, s, None)
    step = 1e-4
    monkeypatch.setattr(rounding, "quantization_step", lambda model, head: step)
    bound = probability_bounds(task, z, s, None)
    np.testing.assert_allclose(bound - plain, step * np.linalg.norm(head.weight, axis=1).max() / 2, rtol=1e-6)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (50, *z.shape))
    moved = (z + step * signs) @ head.weight.T.astype(np.float64) + head.bias
    powers = [np.exp(scores - scores.max(axis=-1, keepdims=True)) for scores in (moved, s)]
    p, q = (each / each.sum(axis=-1, keepdims=True) for each in powers)
    assert np.mean(np.abs(p - q).max(axis=-1) < bound) > 0.95


@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4])
def test_a_map_rounds_in_its_own_steps(small: Small, width: float) -> None:
    """Logits near 0 hardly round, but the probabilities that a steep map reads do: by the unit of their own size."""
    task = of_logits(small)
    s = 1e-4 * np.random.default_rng(0).standard_normal((400, 5))
    fitted = SmoothedIsotonic((((0.2 - width, 0.2 + width), (-2.0, 2.0)),) * 5)
    ops = NodeOps("float32", 17)
    result = fitted.forward(ops, "logits")
    model = small_model(ops.nodes, {"logits": ["N", 5]}, {result: None}, ops.initializers)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    written = probabilities(session.run(None, {"logits": s.astype(np.float32)})[0])
    exact = probabilities(fitted.forward(ArrayOps(s), s))
    bound = probability_bounds(task, s, s, fitted)
    assert np.all(np.abs(written - exact).max(axis=1) <= bound)
    # the runtime's rounding stays visible beside it: a fault of ten times the bound cannot hide
    assert np.max(bound) <= 100 * np.max(np.abs(written - exact))


def test_tf32_is_bounded_as_a_coarse_type_is(task: Task) -> None:
    z = task.calibration.table.features[:50].astype(np.float64)
    s = task.logits(task.weight).at(np.arange(50)).astype(np.float64)
    plain = probability_bounds(task, z, s, None)
    on_cuda = replace(task, provider=CUDA)
    opened = copy.copy(task.opened)
    opened.device = Device("cuda", tf32=False)
    off = replace(on_cuda, opened=opened)
    assert (probability_bounds(on_cuda, z, s, None) > 20 * plain).all()
    np.testing.assert_array_equal(probability_bounds(off, z, s, None), plain)
