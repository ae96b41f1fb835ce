"""One pass over samples: what the model says of each; and whether it is right on average, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import DataError
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.progress import Progress

__all__ = ["off_centre", "probabilities_of"]

# Over all classes, a calibrated model gets a note once in a hundred runs; and only where it matters.
_LEVEL = 0.01
_LARGE = 0.1


def probabilities_of(
    session: Runs, output: ClassOutput, source: Source, batch_size: int, stage: str, progress: Progress
) -> NDArray[np.float32]:
    """Return (N, C) probabilities.

    Args:
        session: on the model.
        output: the output that classifies.
        source: the samples.
        batch_size: samples per run.
        stage: for `progress`.
        progress: called with (stage, done, total).

    Raises:
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    parts = []
    done = 0
    for batch in source.batches(batch_size):
        size = len(next(iter(batch.values())))
        (values,) = session.run([output.name], batch)
        if values.size != size * output.width:
            raise DataError(
                f"{source.describe()}: output '{output.name}' has shape {values.shape} for {size} samples; expected "
                f"({size}, {output.width})"
            )
        found = output.probabilities(values)
        if not np.all(np.isfinite(found)):
            row = done + int(np.argmin(np.isfinite(found).all(axis=1)))
            raise DataError(f"{source.describe()}: output '{output.name}' of sample {row} holds NaN or infinite values")
        parts.append(found.astype(np.float32))
        done += size
        progress(stage, done, len(source))
    return np.concatenate(parts)


def off_centre(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], source: NDArray[np.float64], names: Sequence[str]
) -> str:
    """Return a note where the mean probability of a class is not its frequency; empty where each is.

    Samples are weighted so that classes have their frequencies p: a model that is calibrated under p then passes.

    Args:
        probabilities: (M, C) of labelled samples.
        labels: class indices (M,).
        source: (C,) frequencies p.
        names: of the classes.
    """
    m, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    weights = (source * m / np.maximum(counts, 1))[labels]
    residuals = -np.asarray(probabilities, np.float64)
    residuals[np.arange(m), labels] += 1
    residuals *= weights[:, None]
    mean = residuals.mean(axis=0)
    error = residuals.std(axis=0) / np.sqrt(m)
    limit = NormalDist().inv_cdf(1 - _LEVEL / (2 * classes))
    share = np.abs(mean) / source
    off = (np.abs(mean) > limit * error) & (share > _LARGE)
    if not off.any():
        return ""
    worst = int(np.argmax(np.where(off, share, 0)))
    return (
        f"the model gives class '{names[worst]}' a mean probability of {source[worst] - mean[worst]:.4f}, and its "
        f"frequency is {source[worst]:.4f}: {int(off.sum())} classes are off, and EM carries that over; calibrate with "
        "--map bias first, or say the frequencies of the calibration data with --source-prior"
    )
