"""Whether a written file decides what was meant, and leaves everything else as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.guarding.samples import Values
from tna_onnx.guarding.thresholds import Thresholds

__all__ = ["check_decisions", "check_posterior", "largest_change"]

_MAX_CHANGE = 1e-5
"""Further readers of a tensor may keep ONNX Runtime from fusing nodes, which rounds in another way."""


def check_decisions(decided: Values, scores: Values, thresholds: Thresholds, where: str) -> None:
    """Compare the file's decisions with the scores that the thresholds were chosen on.

    Args:
        decided: by the file, on some samples.
        scores: of the same samples, in the same batches.
        thresholds: that were written.
        where: what the samples are, for messages.

    Raises:
        CheckFailed: a decision is another one.
    """
    level = thresholds.values
    expected: dict[str, NDArray[Any]] = {**scores.values}
    if "accept" in level:
        expected["accept"] = scores.values["confidence"] >= level["accept"]
    if "set" in level:
        # one threshold for all classes, or one a class
        limit = np.broadcast_to(level["set"], np.shape(level["set"]) or (1,))
        of_class = scores.labels if limit.size > 1 else np.zeros_like(scores.labels)
        expected["set"] = scores.values["set"] <= limit[of_class]
    if "ood" in level:
        expected["ood_alarm"] = scores.values["ood"] > level["ood"]
    for role, found in decided.values.items():
        different = np.flatnonzero(found != expected[role])
        if len(different):
            raise CheckFailed(
                f"verification: output {role} of the written file is not what its scores say for {len(different):,} of "
                f"{len(found):,} samples of {where}"
            )


def check_posterior(written: Runs, output: ClassOutput, name: str, batch: Batch) -> None:
    """Compare the probabilities under the default class frequencies with those of the output.

    Raises:
        CheckFailed: they are others.
    """
    found, values = written.run([name, output.name], batch)
    change = float(np.max(np.abs(found - output.probabilities(values))))
    if not change <= _MAX_CHANGE:
        raise CheckFailed(f"verification: output '{name}' is {change:.3g} off the probabilities of '{output.name}'")


def largest_change(
    before: Runs, after: Runs, outputs: list[str], source: Source, rows: NDArray[np.int64], batch_size: int
) -> float:
    """Return the largest change of a value of the outputs that were there before.

    Raises:
        CheckFailed: it is more than rounding.
    """
    largest = 0.0
    for batch in source.batches(batch_size, rows):
        pairs = zip(outputs, before.run(outputs, batch), after.run(outputs, batch), strict=True)
        for name, old, new in pairs:
            if np.array_equal(old, new):
                continue
            change = float("inf")
            if old.dtype.kind == "f" and old.shape == new.shape:
                change = float(np.max(np.abs(old.astype(np.float64) - new.astype(np.float64))))
            if not change <= _MAX_CHANGE * max(1.0, float(np.max(np.abs(old)))):
                raise CheckFailed(f"verification: output '{name}' changed by {change:.3g}; expected no change")
            largest = max(largest, change)
    return largest
