"""`edit_decision`: other thresholds of the output `decision`, or none, without samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tna_onnx.api.arguments import check_targets, kept
from tna_onnx.api.inspect import inspect
from tna_onnx.errors import UsageError
from tna_onnx.extraction.sessions import open_source
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.results.evaluation import Inspection


def edit_decision(
    model: ModelSource,
    thresholds: Mapping[str, float] | None,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    json: str | Path | None = None,
) -> Inspection:
    """Write a copy of a model whose output `decision` has other thresholds, or none.

    Nothing is promised of thresholds that were set by hand, and the file says so.

    Args:
        model: a file with the output `decision`, as `guard` or `calibrate` wrote it.
        thresholds: class, by name or number -> what its probability has to reach; None to remove the output.
        output: path of the new file; `NAME.guard.onnx` beside the model by default.
        overwrite: allow the output to be the input.
        json: JSON file to write.

    Returns:
        What the new file is.

    Raises:
        UsageError: a path, class or threshold that cannot be used.
        UnsupportedModel: the file has no such output, or is not as `guard` wrote it.
        CheckFailed: the new file does not verify. No file is written.
    """
    from tna_onnx.guarding.by_hand import with_thresholds, without_decision  # noqa: PLC0415 - heavy
    from tna_onnx.pipeline.checking import check_file  # noqa: PLC0415 - heavy

    if thresholds is not None and not thresholds:
        raise UsageError("expected a class and its threshold, such as {'spam': 0.7}; None removes the output")
    check_targets(json)
    file = open_source(model, ModelOptions())
    target = file_beside(file, output, ".guard.onnx", overwrite=overwrite)
    before, proto = without_decision(file) if thresholds is None else with_thresholds(file, thresholds)
    with pending(file, proto, target) as path:
        check_file(before, path)
    assert target is not None  # noqa: S101 - only a dry run has none
    return kept(json, inspect(target))
