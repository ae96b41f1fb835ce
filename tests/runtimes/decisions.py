"""Guarded files in other runtimes: `GUARDED` says what is added.

`test_decisions.py` asserts on them; `benchmarks/runtimes.py` prints the matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tna_onnx
from tests.runtimes.matrix import Source
from tests.support import with_options

LEVELS = {"accept": {"risk": 20.0}, "set": {"coverage": 90.0}}  # of the outputs that are added

GUARDED: dict[str, dict[str, Any]] = {
    "confidence, accept": {"add": ["confidence", "accept"]},
    "set (lac)": {"add": ["set"]},
    "set (aps)": {"add": ["set"], "set_score": "aps"},
    "set (raps)": {"add": ["set"], "set_score": "raps"},
    "set (per class)": {"add": ["set"], "per_class": True},
    "ood (energy)": {"add": ["ood"], "ood_score": "energy"},
    "ood (mahalanobis)": {"add": ["ood"], "ood_score": "mahalanobis"},
    "ood (residual)": {"add": ["ood"], "ood_score": "residual"},
    "decision (one class)": {"decide": "f1", "positive": "1"},
    "decision (all classes)": {"decide": "balanced-accuracy"},
    "decision (or none)": {"decide": "fpr<=0.5", "per_class": True},
}


def write_guarded(name: str, source: Source, folder: Path) -> Path:
    """Write a file of `GUARDED`, unless the folder has it."""
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.onnx"
    if path.exists():
        return path
    words = {"device": "cpu", **GUARDED[name]}
    for output in words.get("add", ()):
        words |= LEVELS.get(output, {})
    with_options(tna_onnx.guard, source.model, source.calib, output=path, **words)
    return path
