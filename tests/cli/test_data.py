"""The commands on data of each kind: the same samples, however they are stored, give the same numbers.

One table, made from 120 images, of the ways in which words of the command line say what the data are: `evaluate` and
`calibrate` give the numbers of a `.npz` of the same samples. `tests/data` reads every format. Then class names and
wrong paths.
"""

import io
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import Result
from onnx import helper

from tests import support
from tests.builders import nodes_of, small_model, tensor_info
from tna_onnx.numerics.metric import METRICS

Image = pytest.importorskip("PIL.Image")

N, SIDE = 120, 8
NAMES = ("pig", "cat", "dog", "cow")  # the model's order is not the alphabet's
FIT = support.words_of(support.PLAIN)


def cli(*words: object) -> Result:
    """Run `tna-onnx` on the CPU."""
    return support.cli(*words, "--device", "cpu")


def network(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """Write `image` (N, 3, 8, 8) float32 -> `features` (N, 16) -> `logits` (N, 4)."""
    rng = np.random.default_rng(11)
    hidden = rng.standard_normal((3 * SIDE * SIDE, 16)) / 600
    hidden -= hidden.mean(axis=0)  # the mean of the pixels does not count
    nodes = nodes_of(
        "Flatten image > flat; MatMul flat hidden > h name=trunk; Relu h > features name=relu; "
        "MatMul features weight > logits name=head"
    )
    tensors = {"hidden": hidden.astype(np.float32), "weight": rng.standard_normal((16, 4)).astype(np.float32)}
    x, y = tensor_info("image", ["N", 3, SIDE, SIDE]), tensor_info("logits", ["N", 4])
    onnx.save(small_model(nodes, [x], [y], tensors, metadata=metadata), path)
    return path


@dataclass(frozen=True)
class Animals:
    """A model and 120 labelled images, with what the model itself says about them.

    Attributes:
        pixels: (N, 8, 8, 3) uint8.
        x: (N, 3, 8, 8) float32, what the model gets.
    """

    model: Path
    pixels: np.ndarray
    x: np.ndarray
    labels: np.ndarray
    features: np.ndarray
    logits: np.ndarray
    npz: Path
    classes: Path


def run(model: Path, names: list[str], **feeds: np.ndarray) -> list[np.ndarray]:
    """Run a model by itself, with any tensors as outputs."""
    proto = onnx.load(model)
    known = {o.name for o in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(names, feeds)


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Animals:
    """Draw labels from the softmax at temperature 3, so that the model is overconfident."""
    folder, rng = tmp_path_factory.mktemp("animals"), np.random.default_rng(7)
    model = network(folder / "model.onnx")
    pixels = rng.integers(0, 256, (N, SIDE, SIDE, 3), dtype=np.uint8)
    x = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32)
    features, logits = run(model, ["features", "logits"], image=x)
    labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
    np.savez(folder / "data.npz", image=x, labels=labels)
    (folder / "classes.txt").write_text("\n".join(NAMES))
    return Animals(model, pixels, x, labels, features, logits, folder / "data.npz", folder / "classes.txt")


# --- kinds of data


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def save_images(a: Animals, folder: Path, name: Callable[[int], str]) -> Path:
    for k in range(N):
        path = folder / name(k)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(a.pixels[k]))
    return folder


def class_folders(a: Animals, f: Path) -> list[object]:
    return [save_images(a, f / "photos", lambda k: f"{NAMES[a.labels[k]]}/day/{k}.png")]


def manifest(a: Animals, f: Path) -> list[object]:
    save_images(a, f, lambda k: f"images/{k}.png")
    rows = "".join(f"images/{k}.png\t{NAMES[y]}\n" for k, y in enumerate(a.labels))
    (f / "list.tsv").write_text(f"image\tspecies\n{rows}")
    return [f / "list.tsv", "--label-column", "species"]


SOURCES: dict[str, tuple[Callable[[Animals, Path], list[object]], str]] = {
    "class folders": (class_folders, "image folder photos"),
    "tsv": (manifest, "list.tsv"),
}


def evaluated(model: Path, data: list[object], folder: Path, *flags: object) -> dict[str, Any]:
    support.ok("evaluate", model, "--data", *data, *flags, "--json", folder / "e.json")
    found: dict[str, Any] = json.loads((folder / "e.json").read_text())
    return found


def calibrated(model: Path, data: list[object], folder: Path, *flags: object) -> dict[str, Any]:
    output = folder / "o.onnx"
    support.ok("calibrate", model, "--calib", *data, *flags, "-o", output, "--json", folder / "c.json", *FIT)
    assert output.exists()
    found: dict[str, Any] = json.loads((folder / "c.json").read_text())
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sums are the same up to their order: 120 terms of float64."""
    numbers = {key: value for key, value in expected.items() if value is not None}
    assert found == expected | {key: pytest.approx(value, rel=1e-9) for key, value in numbers.items()}


@pytest.fixture(scope="module")
def reference(animals: Animals, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("reference")
    return evaluated(animals.model, [animals.npz], folder), calibrated(animals.model, [animals.npz], folder)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_each_kind_gives_the_same_numbers(
    animals: Animals, reference: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, source: str
) -> None:
    make, title = SOURCES[source]
    flags = ["--scale", 1, "--classes", animals.classes]
    data = make(animals, tmp_path)
    found = evaluated(animals.model, data, tmp_path, *flags)
    assert title in found["data"]
    assert not any(note.startswith("WARNING") for note in found["notes"])
    assert_same(found["metrics"], reference[0]["metrics"])
    report = calibrated(animals.model, data, tmp_path, *flags)
    assert_same(report["calibration"]["before"], reference[1]["calibration"]["before"])
    assert report["parameters"]["temperature"] == pytest.approx(reference[1]["parameters"]["temperature"], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "form"),
    [*zip(itertools.cycle(["features", "logits"]), ["npz", "labels apart", "npz, float16", "URL", "store", "store"])],
)
def test_features_and_logits(
    animals: Animals, reference: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, kind: str, form: str
) -> None:
    values = getattr(animals, kind)
    flags: list[object] = []
    if form == "store":
        data = tmp_path / "store"
        support.ok("features", animals.model, "--data", animals.npz, "--cache", data)
    elif form == "labels apart":
        data = tmp_path / "d.npz"
        np.savez(data, **{kind: values})
        (tmp_path / "y.txt").write_text("\n".join(NAMES[y] for y in animals.labels))
        flags = ["--labels", tmp_path / "y.txt", "--classes", animals.classes]
    else:
        data = tmp_path / "d.npz"
        half = values.astype(np.float16) if "16" in form else values
        np.savez(data, **{kind: half, "labels": animals.labels})
    if form == "URL":
        pytest.importorskip("fsspec")
        report = calibrated(animals.model, [f"file://{data}"], tmp_path)
    else:
        report = calibrated(animals.model, [data, *flags], tmp_path)
    rel = 5e-3 if "16" in form else 1e-5  # rounding of the stored values; of the sums in the head
    for name in ("n", *METRICS):
        value = reference[1]["calibration"]["before"][name]
        assert report["calibration"]["before"][name] == pytest.approx(value, rel=rel if name != "n" else 0), name
    assert report["parameters"]["temperature"] == pytest.approx(reference[1]["parameters"]["temperature"], rel=rel)


def test_logits_of_a_model_that_gives_probabilities(tmp_path: Path) -> None:
    """A LinearClassifier has no tensor of logits: what is given goes in as probabilities."""
    model, x, logits = linear_classifier(tmp_path / "m.onnx")
    labels = sampled(logits)
    np.savez(tmp_path / "x.npz", x=x, labels=labels)
    np.savez(tmp_path / "l.npz", logits=logits + 5, labels=labels)  # a constant does not count
    expected = calibrated(model, [tmp_path / "x.npz"], tmp_path)
    found = calibrated(model, [tmp_path / "l.npz"], tmp_path)
    assert found["calibration"]["before"]["nll"] == pytest.approx(expected["calibration"]["before"]["nll"], rel=1e-5)
    assert found["parameters"]["temperature"] == pytest.approx(expected["parameters"]["temperature"], rel=1e-4)


# --- class names


def test_class_names_decide_what_a_folder_is(
    animals: Animals, reference: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    model = network(tmp_path / "m.onnx", {"id2label": json.dumps(dict(enumerate(NAMES)))})
    found = evaluated(model, class_folders(animals, tmp_path), tmp_path, "--scale", 1)
    assert_same(found["metrics"], reference[0]["metrics"])


def linear_classifier(path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Write x (N, 8) -> LinearClassifier with softmax -> label, probabilities (N, 4), as skl2onnx has them."""
    rng = np.random.default_rng(2)
    weight, bias = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    layer = {"coefficients": (2 * weight).ravel().tolist(), "intercepts": bias.tolist(), "post_transform": "SOFTMAX"}
    classes = {"classlabels_strings": list(NAMES), "multi_class": 1}
    made = ["label", "probabilities"]
    node = helper.make_node("LinearClassifier", ["x"], made, domain="ai.onnx.ml", **layer, **classes)
    outputs = {"label": (["N"], object), "probabilities": ["N", 4]}
    onnx.save(small_model([node], {"x": ["N", 8]}, outputs, domains={"ai.onnx.ml": 1}), path)
    x = rng.standard_normal((200, 8)).astype(np.float32)
    return path, x, x @ (2 * weight).T + bias


def sampled(logits: np.ndarray) -> np.ndarray:
    return np.argmax(logits / 3 + np.random.default_rng(0).gumbel(size=logits.shape), axis=1)


def test_names_that_a_classifier_node_has(tmp_path: Path) -> None:
    model, x, logits = linear_classifier(tmp_path / "m.onnx")
    labels = sampled(logits)
    np.savez(tmp_path / "i.npz", x=x, labels=labels)
    np.savez(tmp_path / "n.npz", x=x, labels=np.array(NAMES)[labels])
    expected, found = (evaluated(model, [tmp_path / f"{k}.npz"], tmp_path)["metrics"] for k in "in")
    assert found == expected
    fits = [calibrated(model, [tmp_path / f"{k}.npz"], tmp_path) for k in "in"]
    assert fits[0]["parameters"] == fits[1]["parameters"]


def test_names_without_an_order(animals: Animals, tmp_path: Path) -> None:
    """Without the model's names the alphabet decides, and the predictions tell that it is wrong."""
    data = class_folders(animals, tmp_path)
    found = evaluated(animals.model, data, tmp_path, "--scale", 1)
    assert found["metrics"]["accuracy"] < 0.5
    assert any("in another order" in note for note in found["notes"]), found["notes"]
    (tmp_path / "photos/cat").rename(tmp_path / "photos/lion")
    (tmp_path / "photos/horse").mkdir()
    Image.fromarray(animals.pixels[0]).save(tmp_path / "photos/horse/1.png")
    support.refused(4, "so their order is unknown", "evaluate", animals.model, "--data", *data, "--scale", 1)


# --- wrong paths and words

WRONG: dict[str, tuple[list[object], int, str]] = {
    "no such path": (["none"], 2, "no such file or folder"),
    "unknown suffix": (["M/model.onnx"], 4, "found .onnx"),
    "no labels file": (["D", "--labels", "none.csv"], 2, "none.csv: no such file"),
    "no classes file": (["D", "--classes", "none.txt"], 2, "none.txt: no such file"),
    "no preprocessing file": (["D", "--preset", "none.json"], 2, "none.json"),
    "arrays with a recipe": (["D", "--scale", "1"], 2, "images only"),
    "no such column": (["D", "--label-column", "y"], 4, "data.npz"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_paths(animals: Animals, tmp_path: Path, case: str) -> None:
    flags, code, message = WRONG[case]
    given = [str(f).replace("M/", f"{animals.model.parent}/") if f != "D" else animals.npz for f in flags]
    for command in (
        ["calibrate", animals.model, "-o", tmp_path / "o.onnx", "--calib", *given],
        ["features", animals.model, "--cache", tmp_path / "cache", "--data", *given],
    ):
        result = cli(*command)
        assert (result.exit_code, message in result.output) == (code, True), (command, result.output)
    assert list(tmp_path.iterdir()) == []
