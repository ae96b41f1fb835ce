"""Scores that depend on the batch are refused on every route; rounding, and quantising by the batch, are not."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.extraction.samples import rows_run
from tests.support import loaded, outputs_of, with_options
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.independence import one_cycle

CLASSES, SIZE = 6, 8
WEIGHT = np.random.default_rng(0).standard_normal((CLASSES, SIZE)).astype(np.float32)

# What is behind the scores z of a linear head.
OWN = "Identity z > logits"
MEAN = "ReduceMean z > m axes=[0] keepdims=1; Sub z m > logits"
SAME_FOR_ALL_CLASSES = "ReduceMean z > m axes=[0,1] keepdims=1; Mul m ten > ten_m; Sub z ten_m > logits"
LARGEST = "ReduceMax z > m axes=[0,1] keepdims=1; Div z m > q; Mul q ten > logits"
# The number of samples in front of this one is added to the first class.
PLACE = "CumSum one axis > n; Mul n first > n_first; Add z n_first > logits"
# The three samples of a batch with the smallest first score are left out, as experts of a limited capacity do.
CAPACITY = (
    "ReduceMax z > top axes=[1] keepdims=1; Shape top > s; Slice s start one_at start > n_all; "
    "Min three n_all > n_out; TopK top n_out > lowest at axis=0 largest=0; "
    "ReduceMax lowest > edge axes=[0] keepdims=1; Greater top edge > kept; Sub n_all three > over; "
    "Cast over > over_f to=FLOAT; Less over_f twenty > few; Or kept few > stays; Where stays z big > logits"
)
# All samples of a batch move in which one has a large first value.
TRIGGER = (
    "ReduceMax x > m axes=[0,1] keepdims=1; Greater m ten > fired; Cast fired > moved to=FLOAT; "
    "Mul moved ten > ten_moved; Mul first ten_moved > by; Add z by > logits"
)
# 3 is added to the first class of the sample at place 60 of its batch, far behind the first ones.
LAST_PLACE = (
    "Shape x > s; Slice s start one_at start > end; Slice places start end start > q; Mul q first > q_first; "
    "Add z q_first > logits"
)


def _model(behind: str, batch: Any = "N") -> onnx.ModelProto:
    tensors = {
        "w": WEIGHT,
        "first": np.eye(1, CLASSES, dtype=np.float32),
        "axis": np.array(0),
        "ten": np.array(10, np.float32),
        "zero": np.zeros((SIZE, 1), np.float32),
        "unit": np.ones(1, np.float32),
        "start": np.array([0]),
        "one_at": np.array([1]),
        "three": np.array([3]),
        "twenty": np.array([20], np.float32),
        "big": 9 * np.eye(1, CLASSES, dtype=np.float32),
        "places": 3 * np.eye(64, dtype=np.float32)[:, 60:61],
    }
    nodes = nodes_of(f"Gemm x w > z name=head transB=1; Gemm x zero unit > one; {behind}")
    return small_model(nodes, {"x": [batch, SIZE]}, {"logits": [batch, CLASSES]}, tensors)


def _data(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, SIZE)).astype(np.float32)
    labels = np.argmax(x @ WEIGHT.T + rng.gumbel(size=(400, CLASSES)), axis=1)
    np.savez(folder / "data.npz", x=x, labels=labels)
    return folder / "data.npz"


WORDS: dict[str, Any] = {"device": "cpu", "model_options": tna_onnx.ModelOptions(output_kind="logits")}
TS: dict[str, Any] = {"map": "ts", "search": "none", "gates": tna_onnx.Gates(require="nothing")}
ENERGY = tna_onnx.GuardSettings(ood_score="energy")
ROUTES: dict[str, Callable[[Path, Path, Path], object]] = {
    "calibrate": lambda m, d, o: tna_onnx.calibrate(m, d, output=o / "c.onnx", **TS, **WORDS),
    "evaluate": lambda m, d, _: tna_onnx.evaluate(m, d, **WORDS),
    "compare": lambda m, d, _: tna_onnx.compare([m, m], d, **WORDS),
    "guard": lambda m, d, o: tna_onnx.guard(m, d, output=o / "g.onnx", **WORDS),
    "guard ood": lambda m, d, o: tna_onnx.guard(m, d, output=o / "g.onnx", add=("ood",), settings=ENERGY, **WORDS),
    "verify": lambda m, d, _: tna_onnx.verify(m, m, data=d, **WORDS),
    "shift": lambda m, d, o: tna_onnx.shift(m, d, output=o / "s.onnx", target_prior="uniform", **WORDS),
    "features": lambda m, d, o: tna_onnx.features(m, d, cache=o / "cache", **WORDS),
    "extractor": lambda m, d, _: tna_onnx.FeatureExtractor(
        m, output_name="logits", output_kind="logits", kind="logits", device="cpu"
    )({"x": np.load(d)["x"]}),
}


DEPENDENT = {
    MEAN: r"differs by 0\.\d+ when it is run alone",
    # at one place of a whole batch
    LAST_PLACE: "when it is run in another order and without some others",
    # a few samples of each batch are concerned: only a look at every one of them finds these
    CAPACITY: "without some others",
}


@pytest.mark.parametrize(
    ("route", "behind"),
    [*zip(ROUTES, itertools.cycle(DEPENDENT)), ("calibrate", LAST_PLACE), ("calibrate", CAPACITY)],
)
def test_scores_that_depend_on_the_batch_are_refused_on_every_route(route: str, behind: str, tmp_path: Path) -> None:
    onnx.save(_model(behind), tmp_path / "m.onnx")
    data = _data(tmp_path)
    with pytest.raises(UnsupportedModel, match=DEPENDENT[behind]):
        ROUTES[route](tmp_path / "m.onnx", data, tmp_path)
    assert not list(tmp_path.glob("[cgs].onnx"))


@pytest.mark.parametrize("route", ["calibrate", "features", "extractor", "guard ood"])
def test_what_the_probabilities_do_not_show_is_compared_where_it_is_used(route: str, tmp_path: Path) -> None:
    onnx.save(_model(SAME_FOR_ALL_CLASSES), tmp_path / "m.onnx")
    data = _data(tmp_path)
    with pytest.raises(UnsupportedModel, match="of the distance between samples when it is run alone"):
        ROUTES[route](tmp_path / "m.onnx", data, tmp_path)
    ROUTES["evaluate"](tmp_path / "m.onnx", data, tmp_path)  # reads probabilities alone


def test_the_first_batch_of_an_extractor_may_be_short(tmp_path: Path) -> None:
    onnx.save(_model(LAST_PLACE), tmp_path / "m.onnx")
    extractor = tna_onnx.FeatureExtractor(tmp_path / "m.onnx", output_kind="logits", kind="logits", device="cpu")
    with pytest.raises(UnsupportedModel, match="when it is run in another order and without some others"):
        extractor({"x": np.load(_data(tmp_path))["x"][:5]})


def test_the_order_is_one_cycle_over_all_places() -> None:
    for samples in (2, 3, 24, 64, 97):
        order = one_cycle(samples)
        place = 0
        visited = set()
        while place not in visited:
            visited.add(place)
            place = int(order[place])
        assert visited == set(range(samples))


@pytest.mark.parametrize("behind", [PLACE, LARGEST])
@pytest.mark.parametrize("batch", ["N", 32])
def test_other_ways_to_depend_on_the_batch(behind: str, batch: Any, tmp_path: Path) -> None:
    onnx.save(_model(behind, batch), tmp_path / "m.onnx")
    for route in ("calibrate", "evaluate"):
        with pytest.raises(UnsupportedModel, match="depend on what it is run with"):
            ROUTES[route](tmp_path / "m.onnx", _data(tmp_path), tmp_path)


def _save_for_images(model: onnx.ModelProto, x: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """Write a model of images, and samples on another scale: these are tried on a second one before anything else."""
    for node in model.graph.node[:2]:
        node.input[0] = "flat"
    model.graph.node.insert(0, helper.make_node("Flatten", ["x"], ["flat"]))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ["N", 1, "h", "w"]))
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "data.npz", x=255 * x.reshape(-1, 1, 2, SIZE // 2), labels=labels)


@pytest.mark.parametrize(
    ("route", "batch", "scale"),
    [
        *zip(ROUTES, itertools.cycle(["N", 32, 1]), itertools.cycle([1e-4, 1.0])),
        *[("calibrate", 32, 1.0), ("calibrate", 1, 1e-4), ("evaluate", "images", 1.0)],
    ],
)
def test_noise_is_called_random(route: str, batch: Any, scale: float, tmp_path: Path) -> None:
    data = _data(tmp_path)
    noise = f"RandomNormalLike z > n scale={scale}; Add z n > logits"
    model = _model(noise, "N" if batch == "images" else batch)
    onnx.save(model, tmp_path / "m.onnx")
    if batch == "images":
        _save_for_images(model, **loaded(data), folder=tmp_path)
    with pytest.raises(UnsupportedModel, match=r"random: .* when it is run again\. No figure"):
        ROUTES[route](tmp_path / "m.onnx", data, tmp_path)


ROWS = {
    "twice": "Concat z z > logits axis=0",
    "none": "Slice z start start > logits",
    "one": "ReduceMean z > logits axes=[0] keepdims=1",
    "small ones": "ReduceMax z > top axes=[1] keepdims=0; Less top ten > small; Compress z small > logits axis=0",
}


@pytest.mark.parametrize(
    ("route", "rows", "images"),
    [
        *zip(ROUTES, itertools.cycle(ROWS), itertools.cycle([False, True])),
        *zip(["calibrate"] * 4, ROWS, [True, False, True, False], strict=True),
    ],
)
def test_a_model_gives_a_row_for_each_sample(route: str, rows: str, images: bool, tmp_path: Path) -> None:
    model = _model(ROWS[rows])
    stored = loaded(_data(tmp_path))
    stored["x"][0] *= 100  # a large one, in the first batch
    np.savez(tmp_path / "data.npz", **stored)
    onnx.save(model, tmp_path / "m.onnx")
    if images:
        _save_for_images(model, **stored, folder=tmp_path)
    with pytest.raises(UnsupportedModel, match=f"{'m.onnx: .*' * (not images)}gives [0-9]+ rows? for [0-9]+ samples"):
        ROUTES[route](tmp_path / "m.onnx", tmp_path / "data.npz", tmp_path)
    assert not list(tmp_path.glob("[cgs].onnx"))


@pytest.mark.parametrize("batch", ["N", 32, 1])
def test_a_model_whose_scores_are_its_samples_own_is_not(batch: Any, tmp_path: Path) -> None:
    onnx.save(_model(OWN, batch), tmp_path / "m.onnx")
    for route in ("calibrate", "evaluate"):
        ROUTES[route](tmp_path / "m.onnx", _data(tmp_path), tmp_path)


@pytest.mark.parametrize("kind", ["float16", "dynamic"])
def test_rounding_and_ranges_of_a_batch_are_no_dependence(kind: str, tmp_path: Path) -> None:
    data = _data(tmp_path)
    if kind == "float16":
        tensors = {"w": WEIGHT.astype(np.float16)}
        nodes = nodes_of("Cast x > h to=FLOAT16; Gemm h w > z name=head transB=1; Cast z > logits to=FLOAT")
    else:
        # 7 bits: sums of 8-bit products overflow on some CPUs, in batches of some sizes
        scale = np.float32(np.abs(WEIGHT).max() / 63)
        tensors = {"w": np.round(WEIGHT.T / scale).astype(np.int8), "s": scale}
        nodes = nodes_of(
            "DynamicQuantizeLinear x > q qs qz; MatMulInteger q w qz > i name=head; Cast i > f to=FLOAT; "
            "Mul qs s > both; Mul f both > logits"
        )
    model = small_model(nodes, {"x": ["N", SIZE]}, {"logits": ["N", CLASSES]}, tensors)
    onnx.save(model, tmp_path / "m.onnx")
    for route in ("calibrate", "evaluate"):
        ROUTES[route](tmp_path / "m.onnx", data, tmp_path)
    decisions = tna_onnx.GuardSettings(add=("set",))
    report = tna_onnx.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "d.onnx", guard=decisions, **TS, **WORDS)
    assert report.guard is not None
    named = [note for note in report.guard.notes if "quantises each batch" in note]
    assert [note.partition(" ")[0] for note in named] == [str(tmp_path / "d.onnx")] * (kind != "float16")


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "extractor"])
def test_what_the_first_batch_does_not_show_is_seen_in_samples_from_all_over_the_data(
    route: str, tmp_path: Path
) -> None:
    onnx.save(_model(TRIGGER), tmp_path / "m.onnx")
    arrays = dict(np.load(_data(tmp_path)))
    arrays["x"][64::25, 0] = 20.0  # 4 % of the samples, none of them in the first batch
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(UnsupportedModel, match="of a sample of the data"):
        ROUTES[route](tmp_path / "m.onnx", tmp_path / "data.npz", tmp_path)


@pytest.mark.parametrize("samples", [48, 128])
def test_what_the_check_ran_is_not_run_again_to_be_collected(
    samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(_model(OWN), tmp_path / "m.onnx")
    arrays = {name: values[:samples] for name, values in np.load(_data(tmp_path)).items()}
    sizes = rows_run(monkeypatch)
    tna_onnx.features(tmp_path / "m.onnx", arrays, tmp_path / "features")
    # the batches, some alone, and all in parts; no second time as they are
    assert sum(sizes) == samples + 3 + samples


def _before_head(amount: float) -> onnx.ModelProto:
    """Move the features of a batch in which one has a first value above 10."""
    tensors = {
        "w": WEIGHT,
        "ten": np.array(10, np.float32),
        "by": np.array(amount, np.float32),
    }
    nodes = nodes_of(
        "ReduceMax x > m axes=[0,1] keepdims=1; Greater m ten > fired; Cast fired > moved to=FLOAT; "
        "Mul moved by > step; Add x step > h; Gemm h w > logits name=head transB=1"
    )
    return small_model(nodes, {"x": ["N", SIZE]}, {"logits": ["N", CLASSES]}, tensors)


@pytest.mark.parametrize("amount", [0.0, 3e-4, 1.0])
def test_the_check_of_the_written_file_runs_all_of_few_samples_in_other_batches(
    amount: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(_before_head(amount), tmp_path / "m.onnx")
    arrays = {name: values[:128].copy() for name, values in np.load(_data(tmp_path)).items()}
    arrays["x"][100, 0] = 20.0  # not in the first batch
    np.savez(tmp_path / "data.npz", **arrays)
    sizes = rows_run(monkeypatch)

    def calibrate() -> tna_onnx.Report:
        return tna_onnx.calibrate(
            tmp_path / "m.onnx", tmp_path / "data.npz", output=tmp_path / "c.onnx", map="ts", device="cpu"
        )

    if amount == 1:
        with pytest.raises(UnsupportedModel, match="of a sample of the data"):
            calibrate()
    else:
        assert calibrate().verification.batch == 64
    assert (tmp_path / "c.onnx").exists() == (amount < 1)
    # collected, three alone, an eighth of a batch, verified; what differs is looked at again
    assert (sum(sizes) == 128 + 3 + 8 + 128) == (amount == 0)


def test_where_few_samples_differ_in_other_batches_all_of_them_are_looked_at(tmp_path: Path) -> None:
    onnx.save(_before_head(1.0), tmp_path / "m.onnx")
    data = np.load(_data(tmp_path))
    x, labels = data["x"][:256].copy(), data["labels"][:256]
    x[170, 0] = 20.0  # neither in the first batch nor in the spread one
    with pytest.raises(UnsupportedModel, match="depend on what it is run with"):
        tna_onnx.calibrate(
            tmp_path / "m.onnx", (x, labels), output=tmp_path / "c.onnx", map="ts", batch_size=16, device="cpu"
        )


@pytest.mark.parametrize("held_out", [0, 600])
def test_what_depends_on_which_samples_are_together_is_seen_in_few_samples_too(held_out: int, tmp_path: Path) -> None:
    # in any order of one batch two marked samples are together: they have to be taken apart
    marked = one_cycle(60)[1:3]
    rng = np.random.default_rng(2)
    x = rng.standard_normal((60 + held_out, SIZE)).astype(np.float32)
    x[marked, 0] = 9
    tensors = {"w": WEIGHT, "mark": np.array(8, np.float32), "one": np.array(1, np.float32), "zero": np.array([0])}
    nodes = nodes_of(
        "Gather x zero > x0 axis=1; Greater x0 mark > is_marked; Cast is_marked > marked to=FLOAT; "
        "ReduceSum marked > count keepdims=0; Sub count one > others; Mul marked others > step; Add x step > h; "
        "Gemm h w > logits name=head transB=1"
    )
    model = tmp_path / "m.onnx"
    onnx.save(small_model(nodes, {"x": ["N", SIZE]}, {"logits": ["N", CLASSES]}, tensors), model)
    labels = np.argmax(x @ WEIGHT.T + rng.gumbel(size=(len(x), CLASSES)), axis=1)
    calib, eval_data = (x[:60], labels[:60]), (x[60:], labels[60:]) if held_out else None
    with pytest.raises(UnsupportedModel, match="depend on what it is run with"):
        tna_onnx.calibrate(model, calib, eval=eval_data, output=tmp_path / "c.onnx", map="bias", device="cpu")
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.parametrize("place", ["in front", "behind the head", "in a tail"])
def test_a_free_batch_that_runs_with_one_sample_only(place: str, tmp_path: Path) -> None:
    """A batch of one is a constant of a Reshape: the same numbers come out as where the file declares it."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6)).astype(np.float32)
    tensors = {"w": rng.standard_normal((6, 4)).astype(np.float32), "wide": np.array([1, 6]), "row": np.array([1, 4])}
    forms = {
        "in front": "Reshape x wide > u; MatMul u w > y",
        "behind the head": "MatMul x w > s; Reshape s row > y",
        "in a tail": "MatMul x w > s; Relu s > t; Reshape t row > y",
    }
    nodes = nodes_of(forms[place])
    used = {name: value for name, value in tensors.items() if any(name in node.input for node in nodes)}
    labels = np.argmax(x @ tensors["w"] / 2 + rng.gumbel(size=(300, 4)), axis=1)
    found = {}
    for batch in ("N", 1):
        model, written = tmp_path / f"{batch}.onnx", tmp_path / f"{batch}.tna.onnx"
        onnx.save(small_model(nodes, {"x": [batch, 6]}, {"y": [batch, 4]}, used), model)
        words: dict[str, Any] = {"map": "ts", "search": "none", "output": written, "device": "cpu"}
        notes = with_options(tna_onnx.calibrate, model, {"x": x, "labels": labels}, **words).notes
        assert any("one sample only" in note for note in notes) == (batch == "N")
        found[batch] = [outputs_of(str(written), row[None])["y"] for row in x[:20]]
    assert np.array_equal(found["N"], found[1])
