"""`evaluate` on features and logits that were computed before: the numbers of a run of the network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import with_options
from tna_onnx import calibrate, compare, evaluate, guard, shift
from tna_onnx.api.features import features
from tna_onnx.data import mapped
from tna_onnx.data.sources import arrays
from tna_onnx.data.sources.arrays import ArraySource
from tna_onnx.data.sources.feature_files import features_table
from tna_onnx.errors import DataError, UsageError
from tna_onnx.numerics.metric import METRICS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def numbers(evaluation: Any) -> dict[str, float]:
    return {name: getattr(evaluation.metrics, name) for name in METRICS}


def features_of(small: Small, data: Path) -> tuple[Any, Any]:
    """Return the features by NumPy, (N, 32) float32, and labels."""
    hidden = onnx.numpy_helper.to_array(
        next(tensor for tensor in onnx.load(small.model).graph.initializer if tensor.name == "hidden")
    )
    with np.load(data) as file:
        return np.maximum(file["x"] @ hidden, 0), file["labels"]


def write_parts(folder: Path, kind: Any, values: Any, labels: Any, count: int) -> Path:
    """Write rows, shuffled, into some files without a word on who wrote them."""
    folder.mkdir()
    order = np.random.default_rng(count).permutation(len(values))
    for k, part in enumerate(np.array_split(order, count)):
        table = features_table(kind, values[part], {"label": labels[part]}, {})
        pq.write_table(table.replace_schema_metadata(None), folder / f"{k}.parquet", row_group_size=100)
    return folder


@pytest.fixture(scope="module")
def computed(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("computed")
    features(small.model, small.test, output=folder / "files", device="cpu")
    features(small.model, small.test, cache=folder / "store", device="cpu")
    values, labels = features_of(small, small.test)
    np.savez(folder / "npz.npz", features=values, labels=labels)
    return folder


@pytest.mark.parametrize(
    ("form", "options"),
    [("files", {}), ("store", {"search": "sparse", "map": "none"}), ("npz.npz", {"search": "none", "map": "isotonic"})],
)
def test_numbers_are_those_of_the_network(
    small: Small, computed: Path, tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    """Of the model, and of a file with an appended map or a new weight, on features of the model it was made of."""
    model = small.model
    if options:
        model = tmp_path / "new.onnx"
        with_options(calibrate, small.model, small.calib, output=model, device="cpu", **options)
    expected = evaluate(model, small.test, device="cpu")
    measured = evaluate(model, computed / form, device="cpu")
    assert numbers(measured) == pytest.approx(numbers(expected), rel=1e-5, abs=1e-6)
    assert measured.metrics.n == 1500
    assert measured.output == expected.output


@pytest.mark.parametrize("kind", ["features", "logits"])
def test_one_number_for_any_split_and_place(small: Small, tmp_path: Path, kind: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    values, labels = features_of(small, small.test)
    if kind == "logits":
        tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(small.model).graph.initializer}
        values = values @ tensors["weight"].T + tensors["bias"]
    write_parts(tmp_path / "one", kind, values, labels, 1)
    write_parts(tmp_path / "many", kind, values, labels, 37)
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/many/", "/bucket/many/", recursive=True)
    try:
        places = (tmp_path / "one", str(tmp_path / "many" / "*.parquet"), "memory://bucket/many/")
        measured = [numbers(evaluate(small.model, place, device="cpu")) for place in places]
    finally:
        memory.rm("/bucket", recursive=True)
    assert measured[0] == measured[1] == measured[2]
    assert measured[0] == pytest.approx(numbers(evaluate(small.model, small.test, device="cpu")), rel=1e-4, abs=1e-4)


def test_logits_do_not_say_whose_they_are(small: Small, tmp_path: Path) -> None:
    """A recalibrated file has other logits than its source, and a map that reads one of the two."""
    values, labels = features_of(small, small.test)
    data = write_parts(tmp_path / "logits", "logits", values[:, :5], labels, 3)
    calibrate(small.model, small.calib, output=tmp_path / "new.onnx", device="cpu", search="none", map="ts")
    with pytest.raises(UsageError, match="recalibrated"):
        evaluate(tmp_path / "new.onnx", data, device="cpu")


def test_decisions_are_measured_too(small: Small, tmp_path: Path) -> None:
    guard(small.model, small.calib, output=tmp_path / "g.onnx", add=("set", "ood"), device="cpu")
    data = write_parts(tmp_path / "features", "features", *features_of(small, small.test), 1)
    expected = evaluate(tmp_path / "g.onnx", small.test, device="cpu").decisions
    decided = evaluate(tmp_path / "g.onnx", data, device="cpu").decisions
    assert decided.coverage == pytest.approx(expected.coverage, abs=1e-3)
    assert decided.alarms == pytest.approx(expected.alarms, abs=1e-3)


def test_labels_of_features_in_tables_come_from_nowhere_else(small: Small, computed: Path) -> None:
    labels = features_of(small, small.test)[1]
    with pytest.raises(tna_onnx.UsageError, match="leave labels out"):
        tna_onnx.evaluate(small.model, computed / "files", labels=labels, device="cpu")
    with pytest.raises(tna_onnx.UsageError, match=r"holds features in tables.*leave labels out"):
        tna_onnx.calibrate(small.model, computed / "files", labels=labels, device="cpu", dry_run=True)


def test_arrays_behind_a_url_are_copied_once(small: Small, computed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features, and samples for the inputs; what a command cannot take is refused under the name of the URL."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(computed / "npz.npz"), "/bucket/features.npz")
    memory.put(str(small.test), "/bucket/test.npz")
    copied: list[Any] = []
    get = type(memory).get

    def counted(self: Any, *names: Any, **words: Any) -> Any:
        copied.append(names)
        return get(self, *names, **words)

    monkeypatch.setattr(type(memory), "get", counted)
    expected = numbers(evaluate(small.model, small.test, device="cpu"))
    try:
        for name in ("features", "test"):
            measured = evaluate(small.model, f"memory://bucket/{name}.npz", device="cpu")
            assert numbers(measured) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert len(copied) == 2
        for refused in (guard, features):
            with pytest.raises(UsageError, match=r"^memory://bucket/features\.npz: 'features' holds features"):
                refused(small.model, "memory://bucket/features.npz", output=computed / "new", device="cpu")
        assert len(copied) == 4
        calibrate(small.model, "memory://bucket/features.npz", dry_run=True, device="cpu")
        assert len(copied) == 5
    finally:
        memory.rm("/bucket", recursive=True)
    local = evaluate(small.model, f"file://{computed / 'npz.npz'}", device="cpu")
    assert numbers(local) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def of_another_model(values: Any, labels: Any) -> Any:
    return values @ np.linalg.qr(np.random.default_rng(1).standard_normal((32, 32)))[0].astype(np.float32), labels


def too_wide(values: Any, labels: Any) -> Any:
    return np.concatenate([values, values], axis=1), labels


def not_finite(values: Any, labels: Any) -> Any:
    values = values.copy()
    values[700, 3] = np.nan
    return values, labels


@pytest.mark.parametrize(
    ("change", "message"),
    [(of_another_model, r"label|chance"), (too_wide, "64 columns; expected 32"), (not_finite, "NaN")],
)
def test_features_of_nobody_knows_whom(
    small: Small, tmp_path: Path, change: Callable[[Any, Any], Any], message: str
) -> None:
    """Without the writer's metadata shape, numbers and accuracy tell; `evaluate` measures what `calibrate` refuses."""
    values, labels = change(*features_of(small, small.calib))
    data = write_parts(tmp_path / "data", "features", values.astype(np.float32), labels, 2)
    with pytest.raises(DataError, match=message):
        calibrate(small.model, data, output=tmp_path / "new.onnx", device="cpu")
    assert not (tmp_path / "new.onnx").exists()
    if change is of_another_model:
        assert any("label" in note for note in evaluate(small.model, data, device="cpu").notes)
        return
    with pytest.raises(DataError, match=message):
        evaluate(small.model, data, device="cpu")


def test_features_of_another_model_are_refused(small: Small, computed: Path, tmp_path: Path) -> None:
    model = onnx.load(small.model)
    model.producer_name = "another"
    onnx.save(model, tmp_path / "other.onnx")
    for form in ("files", "store"):
        with pytest.raises(DataError, match="computed with another model"):
            evaluate(tmp_path / "other.onnx", computed / form, device="cpu")
    with pytest.raises(UsageError, match="runs the whole model"):
        compare([small.model, tmp_path / "other.onnx"], computed / "files", device="cpu")


@pytest.mark.parametrize("form", ["store", "files", "arrays"])
def test_features_are_no_inputs(small: Small, computed: Path, tmp_path: Path, form: str) -> None:
    """Refused where runs the whole model, also if they are as wide as its input and would be taken for it."""
    values = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    labels = np.arange(200) % 5
    data: Any = computed / form
    if form == "arrays":
        data = {"features": values, "labels": labels}
    elif form == "files":
        data = write_parts(tmp_path / "features", "features", values, labels, 1)
    with pytest.raises(UsageError, match="runs the whole model"):
        guard(small.model, data, output=tmp_path / "g.onnx", device="cpu")
    with pytest.raises(UsageError, match="runs the whole model"):
        shift(small.model, data, target_prior="uniform", output=tmp_path / "s.onnx", device="cpu")
    with pytest.raises(UsageError, match="runs the whole model"):
        shift(small.model, small.calib, data, output=tmp_path / "s.onnx", device="cpu")
    with pytest.raises(UsageError, match="runs the whole model"):
        compare([small.model, small.model], data, device="cpu")


def test_labels_are_not_counted_for_every_batch(small: Small, computed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describing data counts the classes of all labels: time would grow with the square of their number."""
    calls = []
    describe = ArraySource.describe
    monkeypatch.setattr(ArraySource, "describe", lambda source: calls.append(1) or describe(source))
    evaluate(small.model, computed / "files", device="cpu", batch_size=4)
    assert len(calls) < 1500 / 4 / 4


def test_rows_of_a_mapped_file_leave_memory(small: Small, computed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger files than memory are measured: each row that was read goes back, and the numbers stay."""
    expected = evaluate(small.model, computed / "files", device="cpu")
    released = np.zeros(1500, bool)
    release = mapped.release

    def listened(array: Any, rows: slice, stays: int | None = None) -> None:
        released[rows] = True
        release(array, rows, stays)

    monkeypatch.setattr(mapped, "_IN_MEMORY", 0)
    monkeypatch.setattr(mapped, "_STAYS", 0)
    monkeypatch.setattr(arrays, "release", listened)
    measured = evaluate(small.model, computed / "files", device="cpu")
    assert measured.metrics == expected.metrics
    assert released.all()
