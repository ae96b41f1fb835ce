"""The script that makes the paper's table: stand-ins with torchvision's layouts, and the printed figures."""

import importlib
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.builders import nodes_of, small_model

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "paper"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the source archive has no benchmarks")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the script."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


def images(count: int, classes: int, size: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noise (N, 3, size, size) around a colour of each class; one in seven has another label."""
    rng = np.random.default_rng(classes)
    labels = rng.permutation(np.arange(count) % classes)
    shown = np.where(rng.random(count) < 1 / 7, rng.integers(0, classes, count), labels)
    colours = np.random.default_rng(7).integers(60, 196, (classes, 3))
    noise = rng.normal(0, 40, (count, 3, size, size))
    values = np.clip(colours[shown][:, :, None, None] + noise, 0, 255).astype(np.uint8)
    return values, labels.astype(np.int64)


def cifar(folder: Path, name: str, key: str, values: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Write a batch as Python 2 did: names are bytes, a row is red, green, blue."""
    path = folder / name
    path.parent.mkdir(parents=True)
    stored = {b"data": values.reshape(len(values), -1), key.encode(): labels.tolist(), b"batch_label": b"testing"}
    path.write_bytes(pickle.dumps(stored, protocol=2))


def lay_out(dataset: str, folder: Path, values: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    if dataset == "cifar10":
        cifar(folder, "cifar-10-batches-py/test_batch", "labels", values, labels)
    elif dataset == "cifar100":
        cifar(folder, "cifar-100-python/test", "fine_labels", values, labels)
    elif dataset == "svhn":
        from scipy.io import savemat

        digits = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        savemat(folder / "test_32x32.mat", {"X": values.transpose(2, 3, 1, 0), "y": digits})
    else:
        image = pytest.importorskip("PIL.Image")
        for k, (pixels, label) in enumerate(zip(values, labels, strict=True)):
            path = folder / "val" / f"n{label:08d}" / f"ILSVRC2012_val_{k:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(pixels.transpose(1, 2, 0)).save(path, format="JPEG", quality=95)


def network(path: Path, classes: int, size: int) -> None:
    """Write an overconfident model: the mean of each quarter and channel, and a linear layer on these."""
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 4, (classes, 12)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[size // 2] * 2, strides=[size // 2] * 2),
        *nodes_of("Flatten p > z; Gemm z w b > y transB=1"),
    ]
    tensors = {"w": weight, "b": np.zeros(classes, np.float32)}
    onnx.save(small_model(nodes, {"x": ["N", 3, size, size]}, {"y": ["N", classes]}, tensors), path)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "svhn", "imagenet"])
def test_images_and_labels_come_back(script: Any, dataset: str, tmp_path: Path) -> None:
    values, labels = images(30, 10)
    lay_out(dataset, tmp_path, values, labels)
    found = script("layouts").read(dataset, tmp_path)
    if dataset != "imagenet":
        np.testing.assert_array_equal(found.values, values)
        np.testing.assert_array_equal(found.labels, labels)
        return
    numbers = [int(path.stem[-8:]) for path in found.paths]
    np.testing.assert_array_equal(found.labels, labels[numbers])
    assert sorted(numbers) == [*range(30)]


def test_a_folder_without_images_is_named(script: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected cifar10 as torchvision lays it out"):
        script("layouts").read("cifar10", tmp_path)


def test_a_pickle_that_runs_something_is_refused(script: Any, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return print, ("run",)

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({b"data": Runs()}))
    with pytest.raises(pickle.UnpicklingError, match="print is not expected"):
        script("layouts").read("cifar10", tmp_path)


def test_printed_figures_are_those_of_the_paper(script: Any) -> None:
    numbers = script("printed_numbers")
    for dataset, names in numbers.NETWORKS.items():
        for name in names:
            rows = numbers.printed(dataset, name)
            assert tuple(rows) == numbers.METHODS
            for (accuracy, _), (ece, _), (adaece, _) in rows.values():
                assert 70 < float(accuracy) < 98
                assert 0 < float(ece) < 12
                assert 0 < float(adaece) < 12
            # TS keeps every prediction
            assert rows["TS"][0] == rows["None"][0]
    assert numbers.printed("cifar10", "resnet20") == {}
    # looked up by hand
    assert numbers.printed("imagenet", "ViT-H/14")["ETS +TNA (comp.)"] == (
        ("85.43", ".12"),
        ("0.6", ".05"),
        ("0.84", ".07"),
    )
    assert numbers.printed("svhn", "MobileNetV2")["None"] == (("95.74", ".03"), ("0.54", ".02"), ("0.52", ".02"))
    assert numbers.printed("cifar100", "GoogleNet")["AAR"] == (("79.28", ".3"), ("4.46", ".31"), ("4.28", ".3"))


@pytest.mark.slow
def test_the_table_stands_beside_the_printed_one(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, name = "cifar10", "WideResNet28x10"
    values, labels = images(160, 10)
    lay_out(dataset, tmp_path, values, labels)
    network(tmp_path / "m.onnx", 10, 32)
    model = f"{name}={tmp_path / 'm.onnx'}"
    words = [dataset, str(tmp_path), "--model", model, "--calibration", "80", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["table.py", *words, "--device", "cpu", "--output", str(tmp_path / "page.md")])
    script("table").main()
    page = (tmp_path / "page.md").read_text()
    assert page == capsys.readouterr().out
    rows = {cells[0]: cells[1:] for line in page.splitlines() if (cells := [*map(str.strip, line.split("|"))][1:-1])}
    numbers = script("printed_numbers")
    assert set(numbers.METHODS) <= set(rows)
    for method in numbers.METHODS:
        assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d|left out", cell) for cell in rows[method][:3])
        beside = numbers.printed(dataset, name).get(method, ())
        assert rows[method][3:] == [f"{mean} ± 0{spread}" for mean, spread in beside]


def test_what_cannot_be_is_refused(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    model = f"ours={tmp_path / 'm.onnx'}"
    for words, message in (
        (["cifar10", str(tmp_path), "--model", model], "expected cifar10 as torchvision lays it out"),
        (["cifar10", str(tmp_path), "--model", "ours=none.onnx"], "expected NETWORK=FILE with a file that exists"),
        (["mnist", str(tmp_path), "--model", model], "invalid choice"),
    ):
        monkeypatch.setattr(sys, "argv", ["table.py", *words])
        with pytest.raises(SystemExit):
            script("table").main()
        assert message in capsys.readouterr().err
    values, labels = images(20, 10)
    lay_out("cifar10", tmp_path, values, labels)
    monkeypatch.setattr(sys, "argv", ["table.py", "cifar10", str(tmp_path), "--model", model])
    with pytest.raises(SystemExit):
        script("table").main()
    assert "--calibration: expected 1 to 19" in capsys.readouterr().err
