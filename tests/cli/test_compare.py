"""`tna-onnx compare`: its numbers against `evaluate` and the metrics, its words, its page, and what it refuses."""

import json
import re
import shutil
import weakref
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from numpy.typing import DTypeLike
from onnx import numpy_helper

import tna_onnx
from tests import support
from tests.builders import nodes_of, small_model
from tests.conftest import Small
from tests.render.html.test_calibration import check_page
from tna_onnx.extraction import classifier as opening
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.render.html.pages import page_of

N = 600


def cli(*words: object) -> Result:
    """Run `tna-onnx` on the CPU."""
    return support.cli(*words, "--device", "cpu")


def compared(folder: Path, *arguments: object) -> dict[str, Any]:
    support.ok("compare", *arguments, "--json", folder / "compared.json")
    found: dict[str, Any] = json.loads((folder / "compared.json").read_text())
    return found


def classifier(
    path: Path,
    *,
    seed: int = 0,
    classes: int = 4,
    scale: float = 1.0,
    name: str = "x",
    dtype: DTypeLike = np.float32,
    order: list[int] | None = None,
    class_names: list[str] | None = None,
) -> Path:
    """Write `name` (N, 6) -> `logits` (N, classes), linear; `order` is how it numbers its classes."""
    rng = np.random.default_rng(seed)
    weight = scale * rng.standard_normal((6, classes)).astype(np.float32)
    weight = weight if order is None else weight[:, order]
    nodes = nodes_of(f"Cast {name} > float to=FLOAT; MatMul float weight > logits name=head")
    inputs, outputs = {name: (["N", 6], dtype)}, {"logits": ["N", classes]}
    metadata = class_names and {"class_names": json.dumps(class_names)}
    model = small_model(nodes, inputs, outputs, {"weight": weight}, metadata=metadata)
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path)
    return path


def logits_of(path: Path, x: np.ndarray) -> np.ndarray:
    """Compute the logits in NumPy."""
    (weight,) = onnx.load(path).graph.initializer
    return x.astype(np.float32) @ numpy_helper.to_array(weight)


class World:
    """Three models of four classes, and data whose labels come from the softmax of the first one's weight."""

    def __init__(self, folder: Path) -> None:
        self.true = classifier(folder / "true.onnx")
        self.sharp = classifier(folder / "sharp.onnx", scale=3.0)  # the same predictions, overconfident
        self.other = classifier(folder / "other.onnx", seed=1)
        rng = np.random.default_rng(3)
        self.x = rng.standard_normal((N, 6)).astype(np.float32)
        logits = logits_of(self.true, self.x)
        self.labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        self.data = folder / "data.npz"
        np.savez(self.data, x=self.x, y=self.x.astype(np.float64), labels=self.labels)

    def scores(self, model: Path) -> SampleScores:
        return SampleScores.of_logits(logits_of(model, self.x), self.labels)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


# Numbers


def test_differences_and_agreement_are_those_of_the_scores(world: World, tmp_path: Path) -> None:
    found = compared(tmp_path, world.true, world.sharp, world.other, "--data", world.data, "--confidence-level", 90)
    first = world.scores(world.true)
    for entry, model in zip(found["models"][1:], (world.sharp, world.other), strict=True):
        same = bool(np.all(logits_of(model, world.x).argmax(1) == logits_of(world.true, world.x).argmax(1)))
        expected = paired_differences(first, world.scores(model), 15, level=0.9, same_predictions=same)
        for metric in METRICS:
            interval = entry["differences"][metric]
            assert interval["level"] == 0.9
            for key in ("difference", "low", "high"):
                # logits by NumPy and by ONNX Runtime differ by rounding, which float32 scores pass on
                assert interval[key] == pytest.approx(getattr(expected[metric], key), abs=1e-6)
        same = np.mean(logits_of(model, world.x).argmax(1) == logits_of(world.true, world.x).argmax(1))
        assert entry["agreement"] == same
    assert found["models"][0]["differences"] == {}
    assert found["models"][0]["agreement"] == 1.0
    assert found["models"][1]["agreement"] == 1.0  # three times the logits predict the same
    assert found["models"][2]["agreement"] < 0.9


# Models that differ


def test_models_with_other_inputs_see_the_same_samples(world: World, tmp_path: Path) -> None:
    double = classifier(tmp_path / "double.onnx", name="y", dtype=np.float64)
    found = compared(tmp_path, world.true, double, "--data", world.data)
    one, two = found["models"]
    assert one["metrics"] == two["metrics"]
    assert two["agreement"] == 1.0


def test_each_model_gets_the_layout_that_fits_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3 * 4 * 4, 2)).astype(np.float32)
    models = []
    for layout, shape in {"first": ["N", 3, 4, 4], "last": ["N", 4, 4, 3]}.items():
        turn = "Transpose x > t perm=[0,3,1,2]" if layout == "last" else "Identity x > t"
        nodes = nodes_of(f"{turn}; Flatten t > flat; MatMul flat weight > logits")
        model = small_model(nodes, {"x": shape}, {"logits": ["N", 2]}, {"weight": weight})
        models.append(tmp_path / f"{layout}.onnx")
        onnx.save(model, models[-1])
    for k in range(40):
        folder = tmp_path / "photos" / "ab"[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    found = compared(tmp_path, *models, "--data", tmp_path / "photos", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.2,0.2")
    one, two = found["models"]
    assert (one["preprocessing"]["layout"], two["preprocessing"]["layout"]) == ("NCHW", "NHWC")
    # the same sums of float32 in another order
    plain, second = ({k: v for k, v in model["metrics"].items() if k != "positive"} for model in (one, two))
    assert plain == pytest.approx(second, abs=1e-6)
    assert one["metrics"]["positive"]["ece"] == pytest.approx(two["metrics"]["positive"]["ece"], abs=1e-6)


def test_classes_in_another_order_are_matched_by_the_labels(world: World, tmp_path: Path) -> None:
    names, order = ["ant", "bee", "cow", "doe"], [2, 0, 3, 1]
    one = classifier(tmp_path / "one.onnx", class_names=names)
    two = classifier(tmp_path / "two.onnx", order=order, class_names=[names[k] for k in order])
    data = tmp_path / "named.npz"
    np.savez(data, x=world.x, labels=np.array(names)[world.labels])
    found = compared(tmp_path, one, two, "--data", data)
    assert found["models"][0]["metrics"] == pytest.approx(found["models"][1]["metrics"], abs=1e-6)
    assert found["models"][1]["agreement"] == 1.0
    assert (
        "two.onnx numbers the classes in another order than one.onnx; they were matched by the labels" in found["notes"]
    )


def test_only_one_session_is_open_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Any]] = []
    real = opening.open_model

    def counted(*arguments: Any) -> Any:
        assert [ref() for ref in opened] == [None] * len(opened)
        session = real(*arguments)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(opening, "open_model", counted)
    tna_onnx.compare([world.true, world.sharp, world.other], world.data, device="cpu")
    assert len(opened) == 3


# Python


def test_data_in_another_order_each_time_are_refused(world: World, tmp_path: Path) -> None:
    double = classifier(tmp_path / "double.onnx", name="y", dtype=np.float64)
    rng = np.random.default_rng(0)

    class Shuffled:
        def __iter__(self) -> Any:
            rows = rng.permutation(N)
            x = world.x[rows]
            yield {"x": x, "y": x.astype(np.float64), "labels": world.labels[rows]}

    with pytest.raises(tna_onnx.DataError, match=r"double\.onnx: reads other samples than the first model"):
        tna_onnx.compare([world.true, double], Shuffled(), device="cpu")


# Errors


def test_refusals_have_the_exit_codes_of_evaluate(world: World, small: Small, tmp_path: Path) -> None:
    five = classifier(tmp_path / "five.onnx", classes=5)
    (tmp_path / "text.onnx").write_text("no model")
    onnx.save(small_model(nodes_of("Relu x > y"), {"x": ["N", 6]}, {"y": ["N", 6]}), tmp_path / "r.onnx")
    cases: list[tuple[list[object], int, str]] = [
        ([world.true], 2, "at least two models, got 1"),
        ([world.true, tmp_path / "missing.onnx"], 2, "missing.onnx"),
        ([world.true, five], 2, "five.onnx has 5 classes (output 'logits') and true.onnx has 4"),
        ([world.true, world.sharp, "--confidence-level", "20"], 2, "--confidence-level"),
        ([world.true, world.sharp, "--json", world.sharp], 2, "is one of the other files"),
        ([world.true, world.sharp, "--report", world.data], 2, "is one of the other files"),
        ([world.true, world.sharp, "--json", tmp_path / "a", "--report", tmp_path / "a"], 2, "one of the other files"),
        ([world.true, tmp_path / "text.onnx"], 3, "text.onnx"),
        ([world.true, tmp_path / "r.onnx"], 2, "r.onnx has 6 classes"),
        ([world.true, small.model], 2, "5 classes"),
    ]
    for arguments, code, message in cases:
        result = cli("compare", *arguments, "--data", world.data)
        assert (result.exit_code, message in result.output) == (code, True), result.output
    assert not (tmp_path / "a").exists()


def test_a_bad_model_is_found_before_any_runs(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(opening, "open_model", refuse)
    with pytest.raises(tna_onnx.UsageError, match="missing"):
        tna_onnx.compare([world.true, tmp_path / "missing.onnx"], world.data, device="cpu")


def test_the_expected_accuracy_is_the_baselines(world: World) -> None:
    accuracy = 100 * float(world.scores(world.true).hit.mean())
    flags = ["--data", world.data, "--expect-accuracy", accuracy]
    support.ok("compare", world.true, world.other, *flags)  # the other one is much worse
    support.refused(1, "", "compare", world.other, world.true, *flags)


# Page


def text_of(page: str) -> str:
    check_page(page)
    shown = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", " ", shown))


def test_the_page_has_all_numbers_and_loads_nothing(world: World, tmp_path: Path) -> None:
    found = compared(
        tmp_path, world.true, world.sharp, world.other, "--data", world.data, "--report", tmp_path / "c.html"
    )
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    text = text_of(page).replace("−", "-")  # the sign that typography has for minus
    for entry in found["models"]:
        assert entry["name"] in text
        assert entry["verdict"] in text
        assert entry["model_sha256"] in text
        assert f"{100 * entry['metrics']['adaece']:.2f}" in text
        assert f"{entry['metrics']['brier']:.4f}" in text
        for confidence, count in zip(entry["reliability"]["confidence"], entry["reliability"]["count"], strict=True):
            assert not count or f"{confidence:.4f}" in text
        for metric, d in entry["differences"].items():
            in_points = metric in ("accuracy", "ece", "adaece")
            low, high = (f"{100 * d[k]:+.2f}" if in_points else f"{d[k]:+.4f}" for k in ("low", "high"))
            assert f"{low} to {high}" in text
    assert all(note in text for note in found["notes"])
    assert page.count('<svg class="chart"') == 3  # a diagram for each model


def test_the_page_escapes_names_and_holds_many_models(world: World) -> None:
    models = {f'<b>{k}</b> & "{k}"': world.sharp if k % 2 else world.other for k in range(12)}
    few = {"x": world.x[:60], "labels": world.labels[:60]}  # so that many resamples are quick
    found = tna_onnx.compare(models, few, device="cpu", confidence_level=99)
    html = page_of(found, "tna-onnx compare <script>")
    text = text_of(html)
    assert '<b>11</b> & "11"' in text
    assert "<b>" not in html
    assert "tna-onnx compare <script>" in text
    assert html.count('<svg class="chart"') == 12
    assert "Bonferroni" not in text  # 99.91 % would be more than the flag takes
    assert "not corrected for 11 comparisons" in text


def test_data_behind_the_models(small: Small, tmp_path: Path) -> None:
    other = shutil.copy(small.model, tmp_path / "b.onnx")
    words = compared(tmp_path, small.model, other, small.test)
    assert words == compared(tmp_path, small.model, other, "--data", small.test)
    for arguments in ([small.model, other], [small.model], [small.test]):
        support.refused(2, "Missing data. Add them after the models, or as --data DATA.", "compare", *arguments)
