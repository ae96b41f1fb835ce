"""The worst samples of a result: wrong and sure, or right and unsure."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.task import Collected, Task
from tna_onnx.calibration.thumbnail import thumbnails
from tna_onnx.data import Source
from tna_onnx.data.sources.folder import FolderImages
from tna_onnx.data.sources.images import ImageSource
from tna_onnx.engine.logits import Logits
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.details import Sample

__all__ = ["class_names", "worst_rows", "worst_samples"]

# Samples of either kind: a row of pictures.
_MAX_SAMPLES = 6


def worst_samples(
    shown: Collected,
    names: tuple[str, ...],
    before: SampleScores,
    after: SampleScores,
    logits: Logits,
    fitted: CalibrationMap | None,
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return wrong predictions with the highest confidence, and right ones with the lowest.

    Args:
        shown: the samples.
        names: of the classes.
        before: scores of the input.
        after: scores of the result.
        logits: of the result, before its map.
        fitted: that map.

    Raises:
        DataError: a sample cannot be read again.
    """
    over, under = worst_rows(after)
    rows = np.unique(np.r_[over, under])
    predicted = _predicted(logits, fitted, rows)
    # features have no pictures
    images = {} if shown.samples.given else thumbnails(shown.source, rows)

    def sample(row: int) -> Sample:
        return Sample(
            row=row,
            file=_file(shown.source, row),
            label=names[int(shown.source.labels[row])],
            predicted=names[predicted[row]],
            before=float(before.confidence[row]),
            after=float(after.confidence[row]),
            thumbnail=images.get(row, ""),
        )

    return tuple(map(sample, over.tolist())), tuple(map(sample, under.tolist()))


def worst_rows(scores: SampleScores, max_rows: int = _MAX_SAMPLES) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of wrong predictions by falling confidence, and of right ones by rising; at most so many of each."""
    wrong = np.flatnonzero(~scores.hit)
    right = np.flatnonzero(scores.hit)
    # stable: samples of one confidence keep their order, so a run shows the same ones again
    over = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:max_rows]
    under = right[np.argsort(scores.confidence[right], kind="stable")][:max_rows]
    return over, under


def class_names(task: Task, shown: Collected) -> tuple[str, ...]:
    """Names of the classes as given; else of the folders, where each holds the images of one class; else numbers."""
    if task.class_names is not None:
        return task.class_names
    folders = _folder_names(shown.source)
    return tuple(folders.get(k, str(k)) for k in range(task.readout.n_classes))


def _folder_names(source: Source) -> dict[int, str]:
    """Class -> folder, if every folder holds the images of one class, and every class has one folder."""
    if not isinstance(source, ImageSource) or not isinstance(source.files, FolderImages):
        return {}
    pairs = set()
    for row, label in zip(source.rows.tolist(), source.labels.tolist(), strict=True):
        folder, slash, _ = source.files.names[row].partition("/")
        pairs.add((label, folder if slash else ""))
    folder_of = dict(pairs)
    one_to_one = len(pairs) == len(folder_of) == len(set(folder_of.values()))
    if one_to_one and "" not in folder_of.values():
        return folder_of
    return {}


def _predicted(logits: Logits, fitted: CalibrationMap | None, rows: NDArray[Any]) -> dict[int, int]:
    """Row -> class that the result predicts."""
    mask = np.zeros(len(logits), bool)
    mask[rows] = True
    chunks = logits.chunks(mask, features=fitted is not None and fitted.needs_features)
    classes = [np.argmax(apply_map(fitted, values, features), axis=1) for values, _, features in chunks]
    # rows ascend, as the chunks do
    return dict(zip(rows.tolist(), np.concatenate(classes).tolist(), strict=True))


def _file(source: Source, row: int) -> str:
    """Last two parts of the path of a sample's file; empty if it has none."""
    if not isinstance(source, ImageSource):
        return ""
    return "/".join(PurePath(source.files.name(int(source.rows[row]))).parts[-2:])
