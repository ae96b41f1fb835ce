"""What outputs say of one another: from arrays, and in files where one of them moves, or no longer follows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.pipeline.samples import few, opened, outputs, probabilities
from tests.support import with_options
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


@pytest.mark.parametrize(("wrong", "expected"), [(2, "labels"), (3, "")])
def test_labels_may_differ_on_a_hundredth_of_the_samples(wrong: int, expected: str) -> None:
    labels = FIRST.copy()
    labels[:wrong] = (labels[:wrong] + 1) % 3
    assert relation(labels, P, 1e-3) == expected


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
        [
            helper.make_node("Softmax", ["logits"], ["p"], axis=1),
            helper.make_node("Gemm", ["features", "again", "bias"], ["raw"], transB=1),
            helper.make_node("Gemm", ["features", "third", "bias"], ["scores"], transB=1),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ]
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
    runner = Runner(gives)
    rows = np.arange(300)
    if follows:
        check_other_outputs(source, source.calibration, rows, runner, tmp_path / "o.onnx", 1e-4)
        return
    with pytest.raises(CheckFailed, match="'label'"):
        check_other_outputs(source, source.calibration, rows, runner, tmp_path / "o.onnx", 1e-4)


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


def test_a_label_around_the_head_stays_or_becomes_the_likeliest_class(small: Small, tmp_path: Path) -> None:
    """A nearest-neighbour classifier counts its votes twice: for probabilities, and for the label."""
    model = onnx.load(classifier(small, tmp_path / "m.onnx"))
    model.graph.output.remove(next(output for output in model.graph.output if output.name == "raw"))
    onnx.save(model, tmp_path / "m.onnx")
    x = few(small.calib)["x"]
    _, before = outputs(tmp_path / "m.onnx", x)
    words: dict[str, Any] = {"output_name": "p", "head": "head", "device": "cpu", "output": tmp_path / "o.onnx"}
    for name in ("bias", "isotonic", "refit"):
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


# ---- Every output whose values change with the one that classifies is named, with how far it moves


Files = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return a model with an energy score, labels, a mean over everything and an output of its own; data; features."""
    folder = tmp_path_factory.mktemp("moved")
    rng = np.random.default_rng(5)
    weight = 3 * rng.standard_normal((5, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1),
        helper.make_node("ReduceMax", ["logits"], ["energy"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
        helper.make_node("ReduceMean", ["logits"], ["mean"], keepdims=0),
        helper.make_node("Abs", ["x"], ["own"]),
    ]
    outputs = {"logits": ["N", 5], "energy": ["N"], "label": (["N"], np.int64), "mean": [], "own": ["N", 8]}
    onnx.save(small_model(nodes, {"x": ["N", 8]}, outputs, {"w": weight}), folder / "model.onnx")
    x = rng.standard_normal((1500, 8)).astype(np.float32)
    labels = np.argmax(x @ weight.T / 6 + rng.gumbel(size=(1500, 5)), axis=1)
    np.savez(folder / "data.npz", x=x, labels=labels)
    np.savez(folder / "features.npz", features=x, labels=labels)
    return folder / "model.onnx", folder / "data.npz", folder / "features.npz"


def test_an_energy_score_is_named_and_measured(files: Files, tmp_path: Path) -> None:
    model, data, _ = files
    words = {"map": "ts", "search": "none", "output_name": "logits", "device": "cpu"}
    page, result_file = tmp_path / "page.html", tmp_path / "result.json"
    files_written = {"output": tmp_path / "o.onnx", "report": page, "json": result_file}
    result = with_options(tna_onnx.calibrate, model, data, **files_written, **words)  # type: ignore[arg-type]
    energy, mean = result.verification.moved
    assert (energy.name, energy.samples, energy.moved) == ("energy", 512, 512)
    assert energy.largest is not None
    assert energy.largest > 1
    assert (mean.name, mean.samples, mean.largest) == ("mean", 0, None)
    moved = json.loads(result_file.read_text())["verification"]["moved"]
    assert {each["name"] for each in moved} == {"energy", "mean"}
    for each in result.verification.moved:
        assert each.text in result.notes
        assert f"output &#39;{each.name}&#39;" in page.read_text() or f"output '{each.name}'" in page.read_text()


def test_what_features_do_not_reach_is_named_too(files: Files) -> None:
    model, _, features = files
    result = tna_onnx.calibrate(
        model,
        features,
        map="ts",
        search="none",
        dry_run=True,
        model_options=tna_onnx.ModelOptions(output_name="logits"),
    )
    assert [each.name for each in result.verification.moved] == ["energy", "label", "mean"]
    assert not any(each.samples for each in result.verification.moved)


# ---- An output of a coarser type than the logits: its rounding is no error of the file


F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=to)


def _softmax(source: str, target: str, kind: str = "Softmax") -> onnx.NodeProto:
    return helper.make_node(kind, [source], [target], axis=1)


FORMS = {
    "probabilities": ([_softmax("s", "p"), _cast("p", "o", F16)], np.float16, 1e-3),
    "probabilities, cast back": ([_softmax("s", "p"), _cast("p", "q", F16), _cast("q", "o", F32)], np.float32, 1e-3),
    "log-probabilities": ([_softmax("s", "p", "LogSoftmax"), _cast("p", "o", F16)], np.float16, 3e-3),
    "of rounded logits": ([_cast("s", "h", F16), _softmax("h", "o")], np.float16, 0.05),
    "logits": ([_cast("s", "o", F16)], np.float16, 0.05),
}


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return 3 * np.random.default_rng(5).standard_normal((5, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def data(weight: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1000, 8)).astype(np.float32)
    labels = np.argmax(x @ weight.T / 6 + rng.gumbel(size=(1000, 5)), axis=1)
    path = tmp_path_factory.mktemp("types") / "data.npz"
    np.savez(path, x=x, labels=labels)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_the_output_is_no_error(form: str, weight: np.ndarray, data: Path, tmp_path: Path) -> None:
    nodes, dtype, most = FORMS[form]
    head = helper.make_node("Gemm", ["x", "w"], ["s"], name="head", transB=1)
    outputs = {"o": (["N", 5], dtype)}
    model = tmp_path / "m.onnx"
    onnx.save(small_model([head, *nodes], {"x": ["N", 8]}, outputs, {"w": weight}), model)
    for name in ("ts", "ets"):
        found = tna_onnx.calibrate(model, data, dry_run=True, map=name, search="none", device="cpu").verification
        assert found.max_difference <= found.bound <= most
    tna_onnx.shift(model, data, target_prior="uniform", dry_run=True, device="cpu")


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_rounding_of_an_activation_in_half_precision_is_no_error(kind: str, tmp_path: Path) -> None:
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
    onnx.save(small_model(nodes, *infos, {"w": weight}), tmp_path / "m.onnx")
    words: dict[str, Any] = {"search": "none", "map": "ts", "trust_labels": True, "device": "cpu", "dry_run": True}
    found = with_options(tna_onnx.calibrate, tmp_path / "m.onnx", {"x": x, "labels": labels}, **words).verification
    assert 1e-4 < found.max_difference <= found.bound
