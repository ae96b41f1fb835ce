"""The worst samples of a result, and what they and their classes are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import write_folder
from tests.pipeline.samples import scores_of
from tna_onnx.data import InputSpec, open_source
from tna_onnx.engine.logits import StoredLogits
from tna_onnx.extraction.opened_samples import Samples
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.collected_details import class_names, worst_rows, worst_samples
from tna_onnx.pipeline.job import Collected, Task

IMAGE = InputSpec("image", (None, 3, None, None), np.dtype(np.float32))


def test_worst_rows() -> None:
    over, under = worst_rows(scores_of([0.9, 0.8, 0.2, 0.99, 0.1], [False, True, True, False, True]), 2)
    assert (over.tolist(), under.tolist()) == ([3, 0], [4, 2])
    over, under = worst_rows(scores_of([0.9], [True]))
    assert (over.tolist(), under.tolist()) == ([], [0])


def collected(task: Task, source: Any) -> Collected:
    table = FeatureTable(np.zeros((len(source), 1), np.float32), source.labels)
    return Collected(Samples(source, task.readout), table)


def test_samples_are_named_by_the_classes_that_the_map_predicts(task: Task) -> None:
    logits = np.log(np.float32([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    labels = np.array([1, 0, 1])
    source = open_source(
        {"x": np.zeros((3, 4), np.float32), "labels": labels}, [InputSpec("x", (None, 4), IMAGE.dtype)], 2
    )
    swapped = SmoothedIsotonic((((0.5,), (-9.0,)), ((0.5,), (9.0,))))  # always the second class
    after = SampleScores.of_logits(np.log(np.float32([[0.3, 0.7]] * 3)), labels)
    stored = StoredLogits(FeatureTable(logits, labels, 2))
    before = stored.scores()
    over, under = worst_samples(collected(task, source), ("no", "yes"), before, after, stored, swapped)
    assert [(s.row, s.label, s.predicted) for s in over] == [(1, "no", "yes")]
    assert [(s.row, s.label, s.predicted) for s in under] == [(0, "yes", "yes"), (2, "yes", "yes")]
    assert [s.before for s in under] == pytest.approx([0.9, 0.8], abs=1e-6)
    assert [s.after for s in under] == pytest.approx([0.7, 0.7], abs=1e-6)
    assert {s.file for s in (*over, *under)} == {""}


@pytest.mark.parametrize(
    ("files", "labels", "expected"),
    [
        (["cat/1.png", "dog/1.png"], None, ("cat", "dog", "2", "3", "4")),
        (["a/1.png", "a/2.png", "b/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a folder of two classes
        (["a/1.png", "b/1.png", "c/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a class in two folders
        (["1.png", "b/1.png"], [0, 1], ("0", "1", "2", "3", "4")),  # an image in no folder
    ],
)
def test_folders_name_classes_only_one_to_one(
    task: Task, tmp_path: Path, files: list[str], labels: list[int] | None, expected: tuple[str, ...]
) -> None:
    write_folder(tmp_path, files)
    classes = 2 if labels is None else 5
    source = open_source(tmp_path, [IMAGE], classes, labels=labels)
    assert class_names(task, collected(task, source)) == expected
