"""What outputs say of one another: from arrays, and in files where one of them moves, or no longer follows."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import Small
from tests.pipeline.samples import few, opened, outputs, probabilities, recalibrated
from tests.support import PLAIN, with_options
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import Runner
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.other_outputs import _labels_hold, check_other_outputs, relation
from tna_onnx.runtime import open_session

LOGITS = np.random.default_rng(0).standard_normal((200, 3)) * 3
P = probabilities(LOGITS)
FIRST = P.argmax(axis=1)


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        (FIRST, P, "labels"),
        (np.array(["cat", "dog", "eel"])[FIRST], P, "labels"),
        (FIRST[:, None] + 100, P, "labels"),
        (np.zeros(200, np.int64), P, ""),  # one label for all is none
        (np.roll(FIRST, 1), P, ""),
        (np.r_[(FIRST[:2] + 1) % 3, FIRST[2:]], P, "labels"),  # all but a hundredth
        (np.r_[(FIRST[:3] + 1) % 3, FIRST[3:]], P, ""),
        (FIRST.astype(np.float32), P, ""),  # numbers that may be anything
        (P.astype(np.float32), P, "probabilities"),
        (P[:, :, None, None], P, "probabilities"),
        (LOGITS, P, "logits"),
        (LOGITS + 7, P, "logits"),  # a constant per row is no difference
        (LOGITS / 2, P, ""),
        (P[:, ::-1], P, ""),
        (np.full_like(P, np.nan), P, ""),
        (P[:, :2], P, ""),
    ],
    ids=str,
)
def test_relations(values: np.ndarray, p: np.ndarray, expected: str) -> None:
    assert relation(values, p, 1e-3) == expected


def test_one_number_of_two_classes() -> None:
    """The second class's probability, or the difference of the two logits."""
    two = probabilities(LOGITS[:, :2])
    assert relation(two[:, 1], two, 1e-3) == "probabilities"
    assert relation(two[:, 1:], two, 1e-3) == "probabilities"
    assert relation(LOGITS[:, 1] - LOGITS[:, 0], two, 1e-3) == "logits"
    assert relation(two[:, 0] ** 2, two, 1e-3) == ""


def classifier(small: Small, path: Path, sharper: float = 1.0, around: float = 1.0, label: float = 1.0) -> Path:
    """Write `small` with p, its logits `raw` computed around the head, and a label, each from logits times a factor."""
    model = onnx.load(small.model)
    graph = model.graph
    weight = numpy_helper.to_array(next(t for t in graph.initializer if t.name == "weight"))
    for name, factor in (("weight", sharper), ("again", around), ("third", label)):
        kept = [t for t in graph.initializer if t.name != name]
        del graph.initializer[:]
        graph.initializer.extend([*kept, numpy_helper.from_array(np.float32(factor) * weight, name)])
    graph.node.extend(
        nodes_of(
            "Softmax logits > p axis=1; Gemm features again bias > raw transB=1; "
            "Gemm features third bias > scores transB=1; ArgMax scores > label axis=1 keepdims=0"
        )
    )
    del graph.output[:]
    for name, kind, shape in (("p", 1, ["N", 5]), ("raw", 1, ["N", 5]), ("label", TensorProto.INT64, ["N"])):
        graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    onnx.save(model, path)
    return path


def check(task: Task, path: Path) -> None:
    rows = np.arange(len(task.source))
    runner = Runner(open_session(path, path.name, task.device))
    check_other_outputs(task, task.calibration, rows, runner, path, 1e-4)


@pytest.fixture
def source(small: Small, tmp_path: Path) -> Task:
    path = classifier(small, tmp_path / "m.onnx")
    return opened(small, path, few(small.calib), options=ModelOptions(output_name="p", head="head"))


def test_outputs_that_follow_together_pass(source: Task, small: Small, tmp_path: Path) -> None:
    check(source, classifier(small, tmp_path / "o.onnx"))
    check(source, classifier(small, tmp_path / "o.onnx", sharper=0.5, around=0.5, label=0.5))


@pytest.mark.parametrize(
    ("factors", "name", "kind"),
    [({"sharper": 0.5}, "raw", "logits"), ({"around": 0.9}, "raw", "logits"), ({"label": -1.0}, "label", "labels")],
)
def test_an_output_that_stays_behind_is_named(
    source: Task, small: Small, tmp_path: Path, factors: dict[str, float], name: str, kind: str
) -> None:
    path = classifier(small, tmp_path / "o.onnx", **factors)
    p, raw, _ = outputs(path, few(small.calib)["x"])
    assert name == "label" or np.abs(probabilities(raw) - p).max() > 1e-2
    with pytest.raises(CheckFailed, match=f"output '{name}' gives the {kind} of 'p' in .*m.onnx, and would not in o"):
        check(source, path)


@pytest.mark.parametrize(("gap", "follows"), [(0.0001, True), (0.005, False)])
def test_a_label_may_go_either_way_where_two_classes_are_nearly_tied(
    source: Task, tmp_path: Path, gap: float, *, follows: bool
) -> None:
    p = np.tile([0.5 - gap / 2, 0.5 + gap / 2, 0, 0, 0], (300, 1)).clip(1e-12)
    gives: Any = Gives({"p": p, "raw": np.log(p), "label": np.zeros(300, np.int64)})
    with nullcontext() if follows else pytest.raises(CheckFailed, match="'label'"):
        check_other_outputs(source, source.calibration, np.arange(300), Runner(gives), tmp_path / "o.onnx", 1e-4)


@pytest.mark.parametrize(
    ("first", "then", "changed", "holds"),
    [
        (FIRST, FIRST, [], True),
        (FIRST, FIRST, [7], False),  # another class comes first, by little, and the label stays
        (np.where(np.arange(200) == 7, (FIRST + 1) % 3, FIRST), None, [], True),  # it was another one before, too
        (np.where(np.arange(200) == 7, (FIRST + 1) % 3, FIRST), None, [7], True),
        (FIRST, np.where(np.arange(200) == 7, (FIRST + 1) % 3, FIRST), [], False),
    ],
)
def test_labels_follow_where_they_were_right(
    first: np.ndarray, then: np.ndarray | None, changed: list[int], *, holds: bool
) -> None:
    q = P.copy()
    q[changed, FIRST[changed]] = q[changed].mean(axis=1)
    q[changed, (FIRST[changed] + 1) % 3] = q[changed, FIRST[changed]] + 1e-3
    q[changed, (FIRST[changed] + 2) % 3] = 0
    assert _labels_hold(first, P, first if then is None else then, q, tie=1e-4) is holds


@pytest.mark.slow
def test_a_label_around_the_head_stays_or_becomes_the_likeliest_class(small: Small, tmp_path: Path) -> None:
    """A nearest-neighbour classifier counts its votes twice: for probabilities, and for the label."""
    model = onnx.load(classifier(small, tmp_path / "m.onnx"))
    model.graph.output.remove(next(output for output in model.graph.output if output.name == "raw"))
    onnx.save(model, tmp_path / "m.onnx")
    x = few(small.calib)["x"]
    _, before = outputs(tmp_path / "m.onnx", x)
    words: dict[str, Any] = {"output_name": "p", "head": "head", "device": "cpu", "output": tmp_path / "o.onnx"}
    for name in ("bias", "refit"):
        fitted = {"map": name, "search": "none", "overwrite": True, **words}
        with_options(tna_onnx.calibrate, tmp_path / "m.onnx", small.calib, **fitted)
        assert np.array_equal(outputs(tmp_path / "o.onnx", x)[1], before)
        assert tna_onnx.verify(tmp_path / "m.onnx", tmp_path / "o.onnx").passed
        with_options(tna_onnx.calibrate, tmp_path / "m.onnx", small.calib, predictions="change", **fitted)
        p, label = outputs(tmp_path / "o.onnx", x)
        assert np.array_equal(label, p.argmax(axis=1))
        assert tna_onnx.verify(tmp_path / "m.onnx", tmp_path / "o.onnx").passed
    with_options(tna_onnx.shift, tmp_path / "m.onnx", small.calib, target_prior="uniform", overwrite=True, **words)
    assert np.array_equal(outputs(tmp_path / "o.onnx", x)[1], before)
    methods = with_options(tna_onnx.calibrate, tmp_path / "m.onnx", small.calib, dry_run=True, **words).methods
    assert "bias" in {each.method for each in methods}


class Gives:
    """A session that gives the first rows of stored outputs."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self._values = values

    def run(self, names: list[str], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [self._values[name][: len(batch["x"])] for name in names]


# ---- What else is computed from the scores stays as it is; logits, probabilities and labels follow


def _choice() -> onnx.NodeProto:
    """Return a node with graphs of its own, which read the scores from outside."""
    branches = [
        helper.make_graph(nodes_of(f"{kind} s > {name}"), name, [], [helper.make_tensor_value_info(name, 1, None)])
        for kind, name in (("Neg", "then"), ("Exp", "other"))
    ]
    return helper.make_node("If", ["yes"], ["o"], then_branch=branches[0], else_branch=branches[1])


SOFTMAX = "; Softmax s > p axis=1"
STAYS: dict[str, list[onnx.NodeProto]] = {  # of s, the scores; their p is the output that classifies
    "two heads added up": nodes_of(f"Gemm x v > t transB=1; Add s t > o{SOFTMAX}"),
    "the largest score": nodes_of(f"ReduceMax s > o axes=[1] keepdims=0{SOFTMAX}"),
    "energy": nodes_of(f"ReduceLogSumExp s > o axes=[1] keepdims=0{SOFTMAX}"),
    "confidence": nodes_of("Softmax s > p axis=1; ReduceMax p > o axes=[1] keepdims=0"),
    "one number": nodes_of(f"ReduceMean s > o keepdims=0{SOFTMAX}"),
    "entropy": nodes_of("Softmax s > p axis=1; Log p > l; Mul p l > e; ReduceSum e axes > o keepdims=0"),
    "best three": nodes_of("Softmax s > p axis=1; TopK p three > o places axis=1"),
    "a choice": [*nodes_of("Softmax s > p axis=1"), _choice()],
    "a second layer": nodes_of(f"Relu s > r; MatMul r u > o{SOFTMAX}"),
    "a decision": nodes_of("Softmax s > p axis=1; Greater p half > o"),
    "in front of a factor": nodes_of("Relu s > o; Mul s half > z; Softmax z > p axis=1"),
    # p is computed from the output itself
    "on the way": nodes_of("Exp s > o; ReduceSum o axes > sum keepdims=1; Div o sum > p"),
}
FOLLOWS = {
    "logits": nodes_of("Softmax s > p axis=1; Identity s > o"),
    "log-probabilities": nodes_of("Softmax s > p axis=1; LogSoftmax s > o axis=1"),
    "the label": nodes_of("Softmax s > p axis=1; ArgMax s > o axis=1 keepdims=0"),
}
KINDS = {"the label": np.int64, "a decision": np.bool_}


@pytest.fixture(scope="module")
def drawn() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return constants of the forms, and samples."""
    rng = np.random.default_rng(5)
    weights = {name: 3 * rng.standard_normal((4, 8)).astype(np.float32) for name in "wv"}
    constants = {"u": np.eye(4, dtype=np.float32), "half": np.float32(0.5), "yes": np.array(True)}
    whole = {"axes": np.array([1]), "three": np.array([3])}
    return {**weights, **constants, **whole}, rng.standard_normal((1500, 8)).astype(np.float32)


def _form(form: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    head = helper.make_node("Gemm", ["x", "w"], ["s"], name="head", transB=1)
    nodes = [head, *(STAYS | FOLLOWS)[form]]
    used = {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}
    outputs = {"p": ["N", 4], "o": (None, KINDS.get(form, np.float32))}
    return small_model(nodes, {"x": ["N", 8]}, outputs, used)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "map_"), [*zip(STAYS | FOLLOWS, itertools.cycle(["ts", "ts", "ts", "ts", "auto"]), strict=False)]
)
def test_an_output_that_is_no_score_stays(
    form: str, map_: str, drawn: tuple[dict[str, np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    constants, x = drawn
    model = _form(form, constants)
    p, other = outputs(model, x)
    labels = np.argmax(np.log(p) / 6 + np.random.default_rng(6).gumbel(size=p.shape), axis=1)
    search = "auto" if map_ == "auto" else "none"
    report, written = recalibrated(model, (x, labels), tmp_path, output_name="p", map=map_, search=search)
    q, new = outputs(written, x)
    assert np.abs(p - q).max() > 0.1
    if form in STAYS:
        np.testing.assert_allclose(new, other, rtol=1e-5, atol=1e-6)
        assert report.verification.moved == ()
    elif form == "the label":  # the model's own
        assert np.array_equal(new, other)
    else:
        np.testing.assert_allclose(probabilities(new), q, atol=1e-5)
    if map_ == "ts":
        fitted = float(tna_onnx.inspect(written).provenance["temperature"])
        np.testing.assert_allclose(q, probabilities(np.log(p.astype(np.float64)) / fitted), atol=1e-5)


def test_features_need_no_samples_to_keep_an_output(
    drawn: tuple[dict[str, np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    constants, x = drawn
    labels = np.argmax(x @ constants["w"].T / 6 + np.random.default_rng(6).gumbel(size=(1500, 4)), axis=1)
    for form in ("energy", "entropy", "logits", "the label"):
        model = _form(form, constants)
        data = {"features": x, "labels": labels}
        _, written = recalibrated(model, data, tmp_path, output_name="p", map="ts", overwrite=True)
        stays = form in STAYS or form == "the label"
        assert np.allclose(outputs(model, x)[1], outputs(written, x)[1], rtol=1e-5, atol=1e-6) == stays, form


def test_a_search_by_request_moves_them_and_says_so(drawn: tuple[dict[str, np.ndarray], np.ndarray]) -> None:
    constants, x = drawn
    model = _form("energy", constants)
    labels = np.argmax(x @ constants["w"].T / 6 + np.random.default_rng(6).gumbel(size=(1500, 4)), axis=1)
    words = {"output_name": "p", "search": "sparse", "map": "ts", "device": "cpu", "dry_run": True}
    result = with_options(tna_onnx.calibrate, model, {"x": x, "labels": labels}, **words)  # type: ignore[arg-type]
    (energy,) = result.verification.moved
    assert (energy.name, energy.samples, energy.moved) == ("o", 512, 512)
    assert energy.largest is not None
    assert energy.largest > 1
    assert energy.text in result.notes


# ---- An output of a coarser type than the logits: its rounding is no error of the file


FORMS = {
    "probabilities": ("Softmax s > p axis=1; Cast p > o to=FLOAT16", np.float16, 1e-3),
    "probabilities, cast back": (
        "Softmax s > p axis=1; Cast p > q to=FLOAT16; Cast q > o to=FLOAT", np.float32, 1e-3,
    ),
    "log-probabilities": ("LogSoftmax s > p axis=1; Cast p > o to=FLOAT16", np.float16, 3e-3),
    "of rounded logits": ("Cast s > h to=FLOAT16; Softmax h > o axis=1", np.float16, 0.05),
    "logits": ("Cast s > o to=FLOAT16", np.float16, 0.05),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_the_output_is_no_error(form: str) -> None:
    text, dtype, most = FORMS[form]
    rng = np.random.default_rng(6)
    weight = 3 * rng.standard_normal((5, 8)).astype(np.float32)
    x = rng.standard_normal((1000, 8)).astype(np.float32)
    data = x, np.argmax(x @ weight.T / 6 + rng.gumbel(size=(1000, 5)), axis=1)
    nodes = nodes_of(f"Gemm x w > s name=head transB=1; {text}")
    model = small_model(nodes, {"x": ["N", 8]}, {"o": (["N", 5], dtype)}, {"w": weight})
    found = tna_onnx.calibrate(model, data, dry_run=True, map="ets", search="none", device="cpu").verification
    assert found.max_difference <= found.bound <= most
    tna_onnx.shift(model, data, target_prior="uniform", dry_run=True, device="cpu")


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_rounding_of_an_activation_in_half_precision_is_no_error(kind: str) -> None:
    """Where features of a sample are nearly zero its logits are exact, and its probabilities are rounded."""
    rng = np.random.default_rng(0)
    classes = 1 if kind == "Sigmoid" else 3
    weight = (3 * rng.standard_normal((6, classes))).astype(np.float16)
    x = rng.standard_normal((2000, 6)).astype(np.float16)
    x[::2] *= np.float16(1e-4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node(kind, ["s"], ["o"])]
    infos = [tensor_info("x", ["N", 6], np.float16)], [tensor_info("o", ["N", classes], np.float16)]
    logits = x.astype(np.float64) @ weight / 3
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    if kind == "Sigmoid":
        labels = (logits[:, 0] > rng.logistic(size=2000)).astype(np.int64)
    model = small_model(nodes, *infos, {"w": weight})
    found = with_options(tna_onnx.calibrate, model, (x, labels), trust_labels=True, dry_run=True, **PLAIN).verification
    assert 1e-4 < found.max_difference <= found.bound


def test_an_output_of_a_classifier_that_hides_its_scores_stays(tmp_path: Path) -> None:
    """The node has to give scores for the map, and goes on giving others its probabilities."""
    words: dict[str, Any] = {
        "coefficients": [-2.0, -1.0, 1.0, 2.0, 1.0, -1.0], "intercepts": [0.0, 0.0], "classlabels_ints": [0, 1],
        "post_transform": "LOGISTIC",
    }  # fmt: skip
    classifier = helper.make_node("LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **words)
    outputs_declared = {"p": ["N", 2], "o": ["N"]}
    nodes = [classifier, *nodes_of("ReduceMax p > o axes=[1] keepdims=0")]
    model = small_model(nodes, {"x": ["N", 3]}, outputs_declared, domains={"ai.onnx.ml": 3})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 3)).astype(np.float32)
    p, largest = outputs(model, x)
    labels = (np.log(p[:, 1] / p[:, 0]) / 2 > rng.logistic(size=600)).astype(np.int64)
    _, written = recalibrated(model, (x, labels), tmp_path, output_name="p", map="ts")
    q, new = outputs(written, x)
    assert np.array_equal(new, largest)
    assert np.abs(p - q).max() > 0.1
