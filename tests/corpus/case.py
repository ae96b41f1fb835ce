"""One model from one route, and the truth about its head, which comes from the framework that made it.

A truth is a weight, or a refusal. `outcome` compares it with what the package says.
"""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head

OUTCOMES = ("found right", "refused rightly", "refused wrongly", "found wrong", "exception")


class Library:
    """A library that is imported where a name of it is used, as `Library("torch").nn`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pytest asks of every name in a module that it looks for doctests in
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


class Unavailable(Exception):
    """`Case.build` cannot make its model on this machine; the text says why."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model from a route, and the truth about its head.

    Attributes:
        name: unique, like "torch-legacy/opset13/linear".
        route: what made the file: "torch-legacy", "transformers", "ort-optimized", "form", ...
        build: writes the model (and its external data) into a folder, returns the path of the .onnx.
        weight: gives the (C, n) class vectors of the source framework, up to one positive factor. A head with one
            logit and a Sigmoid has (2, n), [0, w]. None: the model must be refused.
        reason: of a refusal: a regular expression that its text must contain, in any case of letters.
        feeds: (N, generator) -> N random samples as model inputs by name; None where the model cannot be run.
        needs: modules to `importorskip`.
        choose: keyword arguments of `choose_head`, where several heads exist.
        rtol: largest deviation from the truth, relative to the truth's largest entry.
    """

    name: str
    route: str
    build: Callable[[Path], Path]
    weight: Callable[[], NDArray[np.floating]] | None
    reason: str = ""
    feeds: Callable[[int, np.random.Generator], dict[str, NDArray[np.generic]]] | None = None
    needs: tuple[str, ...] = ()
    choose: dict[str, str] = field(default_factory=dict)
    rtol: float = 1e-5


def normal_feeds(name: str, *shape: int) -> Callable[[int, np.random.Generator], dict[str, NDArray[np.generic]]]:
    """Return what draws N normal samples of a shape as the input of that name."""
    return lambda n, rng: {name: rng.standard_normal((n, *shape)).astype(np.float32)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what an exporter prints, logs and warns about; errors pass."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def class_vectors(vectors: NDArray[Any]) -> NDArray[Any]:
    """Return the class vectors of a layer; of one with a single logit and a Sigmoid, [0, w]."""
    return np.concatenate([np.zeros_like(vectors), vectors]) if len(vectors) == 1 else vectors


def mismatch(found: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Return the largest |factor * found - truth| over the largest |truth|, for the best factor; inf if it is not > 0.

    Args:
        found: (C, n).
        truth: (C, n). Another shape gives inf.
    """
    a, b = np.asarray(found, np.float64), np.asarray(truth, np.float64)
    if a.shape != b.shape or not np.all(np.isfinite(a)) or not a.any():
        return np.inf
    factor = float(np.sum(a * b) / np.sum(a * a))
    return float(np.max(np.abs(factor * a - b)) / np.max(np.abs(b))) if factor > 0 else np.inf


def outcome(case: Case, folder: Path) -> tuple[str, str]:
    """Build a case and look for its head: (one of `OUTCOMES`, what was seen).

    Errors of `case.build` (`Unavailable` among them) and `case.weight` are not outcomes; they are raised.
    """
    path, truth = case.build(folder), None if case.weight is None else case.weight()
    try:
        head = choose_head(load_model(path), **case.choose)
        found = head.weight
    except UnsupportedModel as refused:
        text = str(refused).removeprefix(f"{path}: ")
        if truth is None and re.search(case.reason, text, re.IGNORECASE):
            return "refused rightly", text
        return "refused wrongly", text if truth is not None else f"for another reason than '{case.reason}': {text}"
    except Exception as error:  # noqa: BLE001 - any other exception is the outcome
        return "exception", f"{type(error).__name__}: {error}"
    if truth is None:
        return "found wrong", f"{head.node} with {found.shape}; expected a refusal: {case.reason}"
    deviation = mismatch(found, truth)
    right = deviation <= case.rtol
    seen = f"{head.node} with {found.shape}, deviation {deviation:.1e}"
    return ("found right", seen) if right else ("found wrong", f"{seen}; expected {truth.shape} within {case.rtol:.0e}")
