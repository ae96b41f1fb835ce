"""`fit`: calibrate scores that are in files, whatever computed them, and write a model that stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from tna_onnx.api.arguments import ProgressWord, refuse_unknown
from tna_onnx.api.calibrator import calibrated, checked_scores, column_numbers
from tna_onnx.api.keywords import FitWords
from tna_onnx.data.sources.score_files import ScoresWord, open_scores
from tna_onnx.results.report import Report


def fit(
    data: Any,
    output: str | Path | None = None,
    *,
    scores: ScoresWord | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    weight_column: str | None = None,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[FitWords],
) -> Report:
    """Choose and fit a map for logits or probabilities in files, and write it as a model by itself.

    The model has one input, `scores` (N, C), and one output, `calibrated` (N, C), of the same kind. `Calibrator` does
    the same for arrays.

    Args:
        data: `.npz` file, Parquet or Arrow files (a file, a folder, a pattern, a URL), or a mapping of arrays, with
            `logits` or `probabilities` (N, C), and labels.
        output: file to write; None for none: the model is `Report.recalibrated`.
        scores: which of the two, where the data hold both.
        label_column: column with the labels; None finds it by its name.
        group_column: column that says which samples belong together: folds and intervals are of groups then.
        weight_column: column with the weight of each sample.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields of `tna_onnx.Settings` by name: `map`, `predictions`, `map_objective`, `bins`, `seed`,
            `trust_labels`, `confidence_level`.

    Raises:
        TypeError: another keyword.
        UsageError: a path or setting that cannot be used.
        DataError: there are no such scores or labels, or no map can be fitted on them.
        CheckFailed: the file does not verify.
    """
    refuse_unknown("fit", words, FitWords)
    found = open_scores(data, scores, label_column, {"groups": group_column, "weights": weight_column})
    values = checked_scores(found.values, found.kind)
    labels, _ = column_numbers(found.labels, values)
    run: dict[str, Any] = {"output": output, "json": json, "progress": progress, **found.beside}
    return calibrated(values, labels, found.kind, **run, **words)
