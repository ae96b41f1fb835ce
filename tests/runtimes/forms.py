"""Files of further forms in other runtimes: tokens, pixels, several labels, two heads, cosines, integer heads.

`FORMS` write them. `test_forms.py` asserts on them; `benchmarks/runtimes.py` prints the matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.pipeline import test_heads as heads
from tests.pipeline import test_integer_heads as integers
from tests.pipeline import test_label_models as labels
from tests.pipeline import test_several as several
from tests.support import with_options


@dataclass(frozen=True, eq=False)
class Form:
    """A model, the file written from it, and some samples.

    Attributes:
        original: the model.
        written: the file.
        x: samples, a batch.
    """

    original: Path
    written: Path
    x: np.ndarray


def positions(kind: str, settings: dict[str, Any], folder: Path) -> Form:
    """Write a file with a class for each token or pixel."""
    first = kind == "pixels"
    shape = (5, 6) if first else (9,)
    data = several.samples(200, shape, 1, classes_first=first)
    model = several.write(folder, several.pixels() if first else several.tokens())
    return _written(model, data, settings)


def integer(form: str, settings: dict[str, Any], folder: Path) -> Form:
    """Write a file whose head computed with integers."""
    return _written(integers.quantized(form, folder), integers.samples(3), settings)


def several_labels(settings: dict[str, Any], folder: Path) -> Form:
    """Write a file with labels that hold or do not, each by itself."""
    onnx.save(labels.model(), folder / "m.onnx")
    return _written(folder / "m.onnx", labels.samples(600, 1), settings)


def two_heads(settings: dict[str, Any], folder: Path) -> Form:
    """Write a file in which two heads were recalibrated."""
    model, *_ = heads._made(folder, "plain")
    data = heads._labelled(onnx.load(model), 1)
    target = folder / "written.onnx"
    heads._calibrated(model, data, target, {"device": "cpu", **settings})
    return Form(model, target, data["x"][:33])


def cosine(settings: dict[str, Any], folder: Path) -> Form:
    """Write a file of a head that normalises features and class vectors."""
    rng = np.random.default_rng(0)
    nodes = nodes_of(
        "LpNormalization x > u axis=1 p=2; LpNormalization w > v axis=1 p=2; Transpose v > vt perm=[1,0]; "
        "MatMul u vt > s name=head; Mul s scale > logits"
    )
    tensors = {"w": rng.normal(size=(5, 16)).astype(np.float32), "scale": np.float32(30)}
    proto = small_model(nodes, {"x": ["N", 16]}, {"logits": ["N", 5]}, tensors)
    onnx.save(proto, folder / "m.onnx")
    x = rng.normal(size=(600, 16)).astype(np.float32)
    logits = 12 * (x / np.linalg.norm(x, axis=1, keepdims=True)) @ _unit(tensors["w"]).T
    drawn = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return _written(folder / "m.onnx", {"x": x, "labels": drawn}, settings)


def _unit(w: np.ndarray) -> np.ndarray:
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def _written(model: Path, data: dict[str, np.ndarray], settings: dict[str, Any]) -> Form:
    target = model.with_name("written.onnx")
    with_options(tna_onnx.calibrate, model, data, output=target, device="cpu", require="nothing", **settings)
    return Form(model, target, data["x"][:33])


NODE = {"search": "none", "map": "ts", "fold": False}
TILTED = {"search": "sparse", "map": "ts", "fold": False, "angle_step": 10.0, "max_ensemble_size": 40}

FORMS: dict[str, Callable[[Path], Form]] = {
    "tokens, `ts, fold=False`": partial(positions, "tokens", NODE),
    "tokens, `isotonic`": partial(positions, "tokens", {"search": "none", "map": "isotonic"}),
    "pixels, tilted, `ts, fold=False`": partial(positions, "pixels", TILTED),
    "pixels, `ets`": partial(positions, "pixels", {"search": "none", "map": "ets"}),
    "several labels, `label-platt, fold=False`": partial(
        several_labels, {"search": "none", "map": "label-platt", "fold": False}
    ),
    "several labels, `label-isotonic`": partial(several_labels, {"search": "none", "map": "label-isotonic"}),
    "two heads, `ets`": partial(two_heads, {"search": "none", "map": "ets"}),
    "cosine, tilted, `ts, fold=False`": partial(cosine, TILTED),
    "integer operators, `isotonic`": partial(integer, "operators", {"search": "none", "map": "isotonic"}),
    "dynamic integers, `ts`": partial(integer, "dynamic", {"search": "none", "map": "ts"}),
    "4-bit weights, `ts`": partial(integer, "4 bits", {"search": "none", "map": "ts"}),
}

LIMITS = {
    ("OpenCV classic engine", "pixels, tilted, `ts, fold=False`"): "no Shape of images whose size is left open",
    ("OpenCV classic engine", "pixels, `ets`"): "no Shape of images whose size is left open",
}
"""What runs the model and refuses the written file."""
