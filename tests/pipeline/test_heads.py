"""Several heads of one model, calibrated one after the other: each as if it were alone, and what stands in the way."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.pipeline.samples import nll, probabilities, recalibrated
from tests.support import PLAIN, TILTED, cli, ok, outputs_of, with_options
from tna_onnx.errors import DataError, UnsupportedModel

CLASSES = {"colour": 5, "shape": 3}
Model = tuple[Path, Path, Path]


def _draw(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _tensors(tied: bool) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(11)
    tensors: dict[str, NDArray[Any]] = {"trunk": _draw(rng, 8, 24)}
    for name, classes in CLASSES.items():
        tensors[f"{name}_weight"] = _draw(rng, classes, 24)
        tensors[f"{name}_bias"] = _draw(rng, classes)
    if tied:
        tensors["shape_weight"] = tensors["colour_weight"]
        tensors["shape_bias"] = tensors["colour_bias"]
    return tensors


def _proto(how: str) -> onnx.ModelProto:
    """A trunk and two heads. `how`: plain, neck (shape has features of its own), tied, reads (shape reads colour)."""
    tensors = _tensors(how == "tied")
    classes = {**CLASSES, "shape": 5} if how == "tied" else CLASSES
    features = {"colour": "features", "shape": "features"}
    nodes = nodes_of("MatMul x trunk > h name=trunk; Relu h > features name=relu")
    if how in ("neck", "tied"):
        nodes.append(helper.make_node("Tanh", ["h"], ["neck"], name="tanh"))
        features["shape"] = "neck"
    stored = {name: name for name in CLASSES}
    if how == "tied":
        tensors = {name: value for name, value in tensors.items() if not name.startswith("shape")}
        stored["shape"] = "colour"
    if how == "reads":
        tensors["shape_weight"] = np.concatenate([tensors["shape_weight"], np.ones((3, 5), np.float32)], axis=1)
    for name in CLASSES:
        if how == "reads" and name == "shape":
            nodes.append(helper.make_node("Concat", ["features", "colour"], ["both"], name="both", axis=1))
            features["shape"] = "both"
        inputs = [features[name], f"{stored[name]}_weight", f"{stored[name]}_bias"]
        nodes.append(helper.make_node("Gemm", inputs, [name], name=f"{name}_head", transB=1))
    outputs = [tensor_info(name, ["N", classes[name]]) for name in CLASSES]
    return small_model(nodes, {"x": ["N", 8]}, outputs, tensors)


def _labelled(proto: onnx.ModelProto, seed: int, n: int = 600) -> dict[str, NDArray[Any]]:
    """Labels from each head's softmax at a temperature of 3, so that both are overconfident."""
    rng = np.random.default_rng(seed)
    x = _draw(rng, n, 8)
    logits = outputs_of(proto, x)
    drawn = {name: np.argmax(z / 3 + rng.gumbel(size=z.shape), axis=1) for name, z in logits.items()}
    return {"x": x, **drawn}


def _made(folder: Path, how: str) -> Model:
    proto = _proto(how)
    onnx.save(proto, folder / "m.onnx")
    for name, seed in (("calib", 1), ("test", 2)):
        np.savez(folder / f"{name}.npz", **_labelled(proto, seed))
    return folder / "m.onnx", folder / "calib.npz", folder / "test.npz"


@pytest.fixture
def two(tmp_path: Path) -> Model:
    return _made(tmp_path, "plain")


def _calibrated(
    model: Path, calib: Any, out: Path, settings: dict[str, Any], heads: tuple[str, ...] = (*CLASSES,), **words: Any
) -> dict[str, Any]:
    """Calibrate one head after the other, the second on the file that the first run wrote; reports by head."""
    reports = {}
    source = model
    for k, name in enumerate(heads):
        target = out if k == len(heads) - 1 else out.with_name(f"step-{k}.onnx")
        reports[name] = with_options(
            tna_onnx.calibrate, source, calib, output=target, head=name, label_column=name, **settings, **words
        )
        source = target
    return reports


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("plain", PLAIN),
        ("tied", {**PLAIN, "map": "ets"}),
        pytest.param("neck", {**PLAIN, "map": "isotonic"}, marks=pytest.mark.slow),
        pytest.param("plain", {**TILTED, "map": "ets"}, marks=pytest.mark.slow),
    ],
)
def test_each_head_is_what_it_would_be_alone(tmp_path: Path, how: str, settings: dict[str, Any]) -> None:
    """The oracle is `calibrate` on the original model for each head, and ONNX Runtime on all files."""
    model, calib, test = _made(tmp_path, how)
    out = tmp_path / "out.onnx"
    reports = _calibrated(model, calib, out, settings, eval=test)
    data = np.load(test)
    together = outputs_of(out, data["x"])
    for name in CLASSES:
        alone = tmp_path / f"{name}.onnx"
        with_options(
            tna_onnx.calibrate, model, calib, eval=test, output=alone, head=name, label_column=name, **settings
        )
        np.testing.assert_allclose(together[name], outputs_of(alone, data["x"])[name], rtol=1e-5, atol=1e-5)
        expected = nll(together[name], data[name])
        assert reports[name].comparison.after.nll == pytest.approx(expected, rel=1e-6)
        assert reports[name].comparison.after.nll < reports[name].comparison.before.nll
        labelled, options = tna_onnx.Data(test, label_column=name), tna_onnx.ModelOptions(head=name)
        evaluation = tna_onnx.evaluate(out, labelled, model_options=options)
        assert evaluation.metrics.nll == pytest.approx(expected, rel=1e-6)
        checked = tna_onnx.verify(model, out, data=labelled, model_options=options)
        assert (checked.passed, [note for note in checked.notes if "sha256" in note]) == (True, [])
    assert tna_onnx.verify(model, out).passed
    step = tna_onnx.verify(tmp_path / "step-0.onnx", out, model_options=tna_onnx.ModelOptions(head="shape"))
    assert (step.passed, step.notes) == (True, ())
    onnx.checker.check_model(onnx.load(out))


def test_a_foreign_change_beside_two_heads_is_seen(two: Model, tmp_path: Path) -> None:
    """What explains the heads explains nothing else."""
    model, calib, _ = two
    _calibrated(model, calib, tmp_path / "out.onnx", {**PLAIN, "map": "ets"})
    proto = onnx.load(tmp_path / "out.onnx")
    trunk = next(tensor for tensor in proto.graph.initializer if tensor.name == "trunk")
    changed = onnx.numpy_helper.to_array(trunk).copy()
    changed[0, 0] += 1
    trunk.CopyFrom(onnx.numpy_helper.from_array(changed, "trunk"))
    found = tna_onnx.verify(model, proto)
    assert [(d.part, d.name) for d in found.differences if not d.explained] == [("tensor", "trunk")]


@pytest.mark.parametrize("map_", ["ts", "ets"])
def test_a_head_that_was_calibrated_is_refused_with_its_data(two: Model, tmp_path: Path, map_: str) -> None:
    """In the weight, or by nodes behind it: the other head's data are no leak, its own are."""
    model, calib, _ = two
    out = tmp_path / "o.onnx"
    _calibrated(model, calib, out, {**PLAIN, "map": map_})
    for name in CLASSES:
        words = {"head": name, "label_column": name, "output": tmp_path / "p.onnx"}
        with pytest.raises((DataError, UnsupportedModel), match=r"was recalibrated on these data|already holds a map"):
            with_options(tna_onnx.calibrate, out, calib, **words, **PLAIN)
        with pytest.raises(DataError, match="was recalibrated on these data"):
            with_options(tna_onnx.guard, out, calib, device="cpu", **words)
    assert not (tmp_path / "p.onnx").exists()


def test_a_head_whose_scores_a_calibrated_one_reads_is_refused(tmp_path: Path) -> None:
    model, calib, _ = _made(tmp_path, "reads")
    with pytest.raises(UnsupportedModel, match="'shape' was recalibrated before, and is computed from the scores of"):
        _calibrated(model, calib, tmp_path / "o.onnx", PLAIN, ("shape", "colour"))
    assert not (tmp_path / "o.onnx").exists()


def test_a_store_has_the_labels_of_its_own_head(two: Model, tmp_path: Path) -> None:
    """Both heads read the same features, so the tensor's name alone does not tell."""
    model, calib, _ = two
    labelled = tna_onnx.Data(calib, label_column="colour")
    with_options(tna_onnx.features, model, labelled, tmp_path / "cache", head="colour")
    settings = {**PLAIN, "output": tmp_path / "o.onnx"}
    with_options(tna_onnx.calibrate, model, tmp_path / "cache", head="colour", **settings)
    with pytest.raises(DataError, match=r"of another head, '.*', not of '.*'; choose the same head"):
        with_options(tna_onnx.calibrate, model, tmp_path / "cache", head="shape", overwrite=True, **settings)


def test_heads_of_classes_and_of_labels(tmp_path: Path) -> None:
    """Each output says what it holds: a Softmax beside a Sigmoid. The oracle is `calibrate` on one of them."""
    proto = _proto("plain")
    for node in proto.graph.node:
        if node.output[0] in CLASSES:
            node.output[0] += "_logits"
    proto.graph.node.append(helper.make_node("Softmax", ["colour_logits"], ["colour"]))
    proto.graph.node.append(helper.make_node("Sigmoid", ["shape_logits"], ["shape"]))
    onnx.save(proto, tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    data = _labelled(_proto("plain"), 1)
    data["shape"] = (rng.random((600, 3)) < outputs_of(tmp_path / "m.onnx", data["x"])["shape"]).astype(np.int64)
    settings = {**PLAIN, "require": "nothing"}
    reports = _calibrated(tmp_path / "m.onnx", data, tmp_path / "o.onnx", settings)
    for name in CLASSES:
        words = {**settings, "head": name, "label_column": name}
        alone = with_options(tna_onnx.calibrate, tmp_path / "m.onnx", data, output=tmp_path / "one.onnx", **words)
        assert reports[name].comparison.after == alone.comparison.after


def _with_a_list(proto: onnx.ModelProto, *, apart: bool) -> onnx.ModelProto:
    """Give the scores of both heads as a list of arrays, as scikit-learn's MultiOutputClassifier is exported."""
    proto.graph.node.append(helper.make_node("SequenceConstruct", [*CLASSES], ["scores"], name="list"))
    if not apart:
        del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_sequence_value_info("scores", onnx.TensorProto.FLOAT, None))
    return proto


def test_scores_in_a_list_of_arrays_are_refused_with_what_to_do(tmp_path: Path) -> None:
    onnx.save(_with_a_list(_proto("plain"), apart=False), tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", **_labelled(_proto("plain"), 1))
    for words in (["inspect", tmp_path / "m.onnx"], ["calibrate", tmp_path / "m.onnx", tmp_path / "calib.npz"]):
        done = cli(*words)
        assert done.exit_code == 3, done.output
        said = " ".join(done.output.split())
        assert "a list of arrays, one a task" in said
        # what the arrays hold is not the question
        assert "--output-kind" not in said


def test_a_list_beside_the_heads_has_their_new_scores(tmp_path: Path) -> None:
    model, calib, _ = _made(tmp_path, "plain")
    onnx.save(_with_a_list(onnx.load(model), apart=True), model)
    out = tmp_path / "o.onnx"
    _calibrated(model, calib, out, {**PLAIN, "map": "ets"})
    found = outputs_of(out, np.load(calib)["x"])
    np.testing.assert_array_equal(found["scores"][0], found["colour"])
    np.testing.assert_array_equal(found["scores"][1], found["shape"])
    # arrays of different width are compared as one
    verified = ok("verify", model, out, "--data", calib, "--head", "shape", "--label-column", "shape")
    assert f"{600 * sum(CLASSES.values()):,} of {600 * sum(CLASSES.values()):,} values differ" in verified.output


@pytest.mark.parametrize("names", [("y", "y/b"), ("guard", "a b")])
def test_outputs_with_names_that_the_file_uses_itself(tmp_path: Path, names: tuple[str, str]) -> None:
    model, calib, _ = _made(tmp_path, "plain")
    proto = onnx.load(model)
    new = dict(zip(CLASSES, names, strict=True))
    for node in proto.graph.node:
        node.output[:] = [new.get(name, name) for name in node.output]
    for info in proto.graph.output:
        info.name = new[info.name]
    onnx.save(proto, model)
    data = {new.get(name, name): values for name, values in np.load(calib).items()}
    settings = {**PLAIN, "map": "ets"}
    _calibrated(model, data, tmp_path / "o.onnx", settings, names)
    assert tna_onnx.verify(model, tmp_path / "o.onnx").passed


def test_decisions_on_one_head_say_nothing_of_the_other(two: Model, tmp_path: Path) -> None:
    """The outlier score reads the head's own logits: those in front of its own map."""
    name = "shape"
    model, calib, test = two
    out = tmp_path / "o.onnx"
    _calibrated(model, calib, out, {**PLAIN, "map": "ets"})
    rows = dict(np.load(test))
    guarded = tmp_path / "g.onnx"
    words: dict[str, Any] = {"add": ["accept", "ood"], "ood_score": "energy", "risk": 60.0, "device": "cpu"}
    with_options(tna_onnx.guard, out, rows, head=name, label_column=name, output=guarded, **words)
    fresh = _labelled(onnx.load(model), 5)
    for each in CLASSES:
        decisions = tna_onnx.evaluate(
            guarded, tna_onnx.Data(fresh, label_column=each), model_options=tna_onnx.ModelOptions(head=each)
        ).decisions
        assert (decisions is not None) == (each == name)
    score = outputs_of(guarded, fresh["x"])["ood"]
    logits = outputs_of(model, fresh["x"])[name].astype(np.float64)
    np.testing.assert_allclose(score, -np.log(np.sum(np.exp(logits), axis=1)), rtol=1e-4)


@pytest.mark.parametrize(
    ("how", "map_name"), [("Split", "isotonic"), ("Split", "ts"), ("Slice", "bias"), ("Slice", "refit")]
)
def test_a_layer_of_two_heads_keeps_the_other(how: str, map_name: str, tmp_path: Path) -> None:
    """One layer makes the scores of two tasks: the columns of the other stay, their biases too."""
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    ends = {"zero": [0], "four": [4], "seven": [7], "one": [1], "parts": [4, 3]}
    parts = [helper.make_node("Split", ["s", "parts"], ["a", "b"], axis=1)]
    if how == "Slice":
        cuts = (("zero", "four", "a"), ("four", "seven", "b"))
        parts = [helper.make_node("Slice", ["s", start, end, "one"], [name]) for start, end, name in cuts]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["s"]),
        *parts,
        *nodes_of("Softmax a > p axis=1; Softmax b > q axis=1"),
    ]
    tensors = {"w": weight, "bias": bias, **{name: np.array(value, np.int64) for name, value in ends.items()}}
    proto = small_model(nodes, {"x": ["N", 5]}, {"p": ["N", 4], "q": ["N", 3]}, tensors)
    x = rng.standard_normal((600, 5)).astype(np.float32)
    scores = (x @ weight + bias)[:, :4]
    data = x, np.argmax(scores / 2 + rng.gumbel(size=scores.shape), axis=1)
    report, path = recalibrated(proto, data, tmp_path, output_name="p", map=map_name, require="nothing")
    old, new = (outputs_of(model, x) for model in (proto, path))
    np.testing.assert_array_equal(new["q"], old["q"])
    if map_name == "ts":
        expected = probabilities(scores / report.parameters["temperature"])
        np.testing.assert_allclose(new["p"], expected, rtol=0, atol=1e-5)
