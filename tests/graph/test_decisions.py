"""Decisions in graphs of all forms against a direct computation from the model's own output."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model
from tests.graph.samples import CASES, CLASSES, Builder, run, softmax
from tests.support import pairwise
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.decisions import Guarded, SetScore, add_decisions, add_scores
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readout import ClassOutput
from tna_onnx.graph.scores import class_output

NAMES = {"confidence": "confidence", "accept": "accept", "set": "set"}
LEVELS = {"accept": np.float32(0.6), "set": np.float32(0.7)}
READ = [name for name, case in CASES.items() if set(case().outputs.values()) - {"argmax"}]


def probabilities(output: ClassOutput, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float32).reshape(len(values), -1)
    if output.kind == "positive_probability":
        return np.concatenate([1 - values, values], axis=1)
    if output.kind == "probabilities":
        return values
    return softmax(values)


def decided(model: Model, score: SetScore, x: np.ndarray, **changes: object) -> tuple[ClassOutput, list[np.ndarray]]:
    output = class_output(model)
    given = {"names": NAMES, "thresholds": LEVELS, **changes}
    proto = add_decisions(model, Guarded(output, score, None), **given)
    if not model.external_files:
        onnx.checker.check_model(proto, full_check=True)
    path = model.path.with_name("guarded.onnx")
    path.write_bytes(proto.SerializeToString())
    return output, run(path, [output.name, *given["names"].values()], x)


def direct(p: np.ndarray, score: SetScore) -> np.ndarray:
    """Set scores (N, C), one sample at a time."""
    found = 1 - p
    for row, own in zip(found, p, strict=True):
        for rank, c in enumerate(np.argsort(-own, kind="stable"), start=1):
            if score.name != "lac":
                row[c] = own[own > own[c]].sum() + own[c] / 2 + score.weight * max(rank - score.free, 0)
            if rank == 1 and not score.allow_empty:
                row[c] = 0
    return found


@pytest.mark.parametrize("name", READ[::3])
def test_every_form_of_output(name: str, tmp_path: Path) -> None:
    sample = CASES[name]()
    model = sample.write(tmp_path)
    x = sample.inputs(40)
    try:
        output, (values, confidence, accept, sets) = decided(model, SetScore(), x)
    except UnsupportedModel as error:
        assert "opset" in str(error)  # noqa: PT017 - some of the cases have older ones
        return
    before = run(model.path, [output.name], x)[0]
    np.testing.assert_array_equal(values, before)
    p = probabilities(output, values)
    # ONNX Runtime computes float16 as float32, and rounds only what it returns
    tolerance = 1e-3 if values.dtype == np.float16 else 2e-6
    np.testing.assert_allclose(confidence, p.max(axis=1), atol=tolerance)
    clear = np.abs(p - 0.6) > 2 * tolerance
    np.testing.assert_array_equal(accept[clear.all(axis=1)], (p.max(axis=1) >= 0.6)[clear.all(axis=1)])
    clear = np.abs(1 - p - 0.7) > 2 * tolerance
    np.testing.assert_array_equal(sets[clear], (1 - p <= 0.7)[clear])


@pytest.mark.parametrize(
    ("score", "allow_empty", "opset"),
    pairwise([SetScore(), SetScore("aps"), SetScore("raps", free=1, weight=0.05)], [False, True], [11, 13, 18, 21]),
)
def test_set_scores_by_definition(score: SetScore, allow_empty: bool, opset: int, tmp_path: Path) -> None:
    score = replace(score, allow_empty=allow_empty)
    b = Builder(opset=opset)
    b.linear("y")
    sample = b.sample()
    model = sample.write(tmp_path)
    x = sample.inputs(60)
    output, (values, _, _, sets) = decided(model, score, x)
    p = probabilities(output, values)
    expected = direct(p, score)
    clear = np.abs(expected - LEVELS["set"]) > 1e-5
    np.testing.assert_array_equal(sets[clear], (expected <= LEVELS["set"])[clear])
    assert sets.dtype == bool
    assert len(np.unique(sets.sum(axis=1))) > 1
    if not allow_empty:
        assert sets[np.arange(len(p)), p.argmax(axis=1)].all()


@pytest.mark.parametrize("kind", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize("score", [SetScore(), SetScore("aps")], ids=str)
def test_one_entry_that_is_no_number_decides_nothing(kind: str, score: SetScore, tmp_path: Path) -> None:
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", CLASSES]) for name in "xy"]
    path = tmp_path / "m.onnx"
    onnx.save(small_model([helper.make_node("Identity", ["x"], ["y"])], infos[:1], infos[1:], [], opset=17), path)
    guarded = Guarded(ClassOutput("y", kind, CLASSES), score, None)
    proto = add_decisions(load_model(path), guarded, LEVELS, NAMES)
    path.write_bytes(proto.SerializeToString())
    p = np.random.default_rng(0).dirichlet(np.ones(CLASSES), 20).astype(np.float32)
    lost = np.arange(20) % (CLASSES + 1)
    p[lost < CLASSES, lost[lost < CLASSES]] = np.nan
    whole = lost == CLASSES
    values = np.log(p) if kind == "log_probabilities" else p
    _, confidence, accept, sets = run(path, ["y", *NAMES.values()], values)
    assert np.isnan(confidence[~whole]).all()
    assert not accept[~whole].any()
    assert sets[~whole].all()
    if kind == "probabilities":
        np.testing.assert_array_equal(confidence[whole], p[whole].max(axis=1))


def test_names_that_are_taken_and_models_that_have_them(tmp_path: Path) -> None:
    model = CASES["float32 Gemm"]().write(tmp_path)
    guarded = Guarded(class_output(model), SetScore(), None)
    with pytest.raises(UnsupportedModel, match=r"has a tensor called 'features' already; choose another --prefix"):
        add_decisions(model, guarded, LEVELS, {"accept": "features"})
    model.path.write_bytes(add_decisions(model, guarded, LEVELS, NAMES).SerializeToString())
    again = load_model(model.path)
    with pytest.raises(UnsupportedModel, match="has been guarded already"):
        add_scores(again, guarded)


@pytest.mark.parametrize(("opset", "score"), [(8, "lac"), (10, "aps")])
def test_an_opset_that_is_too_old(opset: int, score: str, tmp_path: Path) -> None:
    b = Builder(opset=opset)
    b.linear("y")
    model = b.sample().write(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"has opset .* too old .* convert it"):
        add_scores(model, Guarded(class_output(model), SetScore(score), None))
