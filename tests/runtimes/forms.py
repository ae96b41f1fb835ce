"""Files of further forms in other runtimes: several predictions a sample, heads that computed with integers.

`FORMS` write them. `test_forms.py` asserts on them; `benchmarks/runtimes.py` prints the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tna_onnx
from tests.calibration import test_integer_heads as integers
from tests.calibration import test_several as several

__all__ = ["FORMS", "LIMITS", "Form"]


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


def _written(model: Path, data: dict[str, np.ndarray], settings: dict[str, Any]) -> Form:
    target = model.with_name("written.onnx")
    tna_onnx.calibrate(model, data, output=target, device="cpu", fail_if_worse=False, **settings)
    return Form(model, target, data["x"][:33])


NODE = {"search": "none", "map": "ts", "fold": False}
TILTED = {"search": "sparse", "map": "ts", "fold": False, "angle_step": 10.0, "max_ensemble_size": 40}

FORMS: dict[str, Callable[[Path], Form]] = {
    "tokens, `ts --no-fold`": partial(positions, "tokens", NODE),
    "tokens, `irova`": partial(positions, "tokens", {"search": "none", "map": "irova"}),
    "pixels, tilted, `ts --no-fold`": partial(positions, "pixels", TILTED),
    "pixels, `ets`": partial(positions, "pixels", {"search": "none", "map": "ets"}),
    "integer operators, tilted, `ts --no-fold`": partial(integer, "operators", TILTED),
    "integer operators, `irova`": partial(integer, "operators", {"search": "none", "map": "irova"}),
    "dynamic integers, tilted, `ts --no-fold`": partial(integer, "dynamic", TILTED),
    "4-bit weights, tilted, `ts --no-fold`": partial(integer, "4 bits", TILTED),
}

LIMITS = {
    ("onnx reference evaluator", "dynamic integers, tilted, `ts --no-fold`"): "no DequantizeLinear before opset 19",
    ("OpenCV classic engine", "pixels, tilted, `ts --no-fold`"): "no Shape of images whose size is left open",
    ("OpenCV classic engine", "pixels, `ets`"): "no Shape of images whose size is left open",
}
"""What runs the model and refuses the written file."""
