"""Models and samples of `guarantees.py`: probabilities, kept for the next run; shifted copies of images; a table."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.runtime import parse_device

__all__ = ["Predictions", "predictions", "scratch", "shifted_images", "table_model"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities (N, C) and labels (N,) of all samples, in an order that shifted copies share."""

    p: NDArray[np.float32]
    labels: NDArray[np.int64]


def predictions(
    model: Path, paths: list[Path], recipe: Recipe | None, keep: Path | None, output_kind: str | None = None
) -> Predictions:
    """Run a model over data sets, one behind the other; a file that is there already is read instead."""
    if keep is not None and keep.is_file():
        with np.load(keep) as stored:
            return Predictions(stored["p"], stored["labels"])
    loaded = load_model(model)
    output = class_output(loaded, kind=output_kind)
    session = open_model(loaded, parse_device("cpu"))
    parts = []
    labels = []
    for path in paths:
        data = Data(path, preprocessing=recipe)
        names = data.class_names(loaded.metadata, output.labels, output.n_classes)
        source = data.open(input_specs(session), output.n_classes, names)
        labels.append(source.labels)
        parts += [output.probabilities(session.run([output.name], batch)[0]) for batch in source.batches(64)]
    found = Predictions(np.concatenate(parts).astype(np.float32), np.concatenate(labels))
    if keep is not None:
        np.savez(keep, p=found.p, labels=found.labels)
    return found


def shifted_images(folder: Path, shift: str, target: Path) -> Path:
    """Write a copy of an image folder with another quality (`jpeg:10`) or normal noise (`noise:0.1`, of the range)."""
    from PIL import Image  # noqa: PLC0415 - of no use to the others

    kind, _, amount = shift.partition(":")
    rng = np.random.default_rng(0)
    for path in sorted(folder.glob("*/*")):
        place = target / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        image = Image.open(path).convert("RGB")
        if kind == "jpeg":
            image.save(place / f"{path.stem}.jpg", quality=int(amount))
            continue
        pixels = np.asarray(image) / 255
        noisy = np.clip(pixels + float(amount) * rng.standard_normal(pixels.shape), 0, 1)
        Image.fromarray(np.uint8(np.round(255 * noisy))).save(place / f"{path.stem}.png")
    return target


def table_model(folder: Path) -> tuple[Path, Path]:
    """Write a random forest on scikit-learn's digits, as columns, and a table that it has not seen; return both."""
    from skl2onnx import to_onnx  # noqa: PLC0415 - only for the table
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=400, random_state=0, stratify=y)
    forest = RandomForestClassifier(50, random_state=0).fit(x_train, y_train)
    model = folder / "forest.onnx"
    model.write_bytes(to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString())
    data = folder / "rest.npz"
    np.savez(data, X=x_rest, labels=y_rest)
    return model, data


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is gone afterwards."""
    return tempfile.TemporaryDirectory(prefix="guarantees-")
