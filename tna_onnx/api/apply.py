"""Changes of a file without samples: `apply` makes a recalibrated file of its source and a patch, and `edit_decision`
gives a guarded file other thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tna_onnx.api.arguments import check_targets, save_json, write_bytes
from tna_onnx.api.inspect import inspect
from tna_onnx.api.verify import verify
from tna_onnx.errors import CheckFailed, UsageError
from tna_onnx.extraction.isolation import open_source
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.save import check_output, file_beside, pending
from tna_onnx.pipeline.settings import check_patch_name
from tna_onnx.results.inspection import Inspection, ModelDifference


def apply(
    model: ModelSource,
    patch: str | Path | bytes,
    *,
    output: str | Path | None = None,
    checkpoint: str | Path | None = None,
    overwrite: bool = False,
    json: str | Path | None = None,
) -> ModelDifference:
    """Write the file that `calibrate` wrote when it made a patch, byte for byte.

    Args:
        model: the model that was calibrated, in the forms that `calibrate` takes.
        patch: path of the patch, `NAME.npz` or `NAME.safetensors`; or its bytes, as `Report.patch` has them. Of an
            adapter, `NAME.onnx_adapter`, the file that is written is the model itself, whose head's weight and bias
            are inputs with defaults, for sessions that run with such adapters.
        output: path of the new file; `NAME.tna.onnx` beside the model by default.
        checkpoint: `NAME.safetensors` that the model was exported from: it is written anew with the new head, instead
            of an ONNX file; `NAME.tna.safetensors` beside it by default.
        overwrite: allow the output to be the input.
        json: JSON file to write.

    Returns:
        In what the new file differs from the model, as `verify` has found it.

    Raises:
        UsageError: a path that cannot be used.
        UnsupportedModel: the model cannot be read, or a checkpoint cannot hold the change.
        CheckFailed: the patch belongs to another model. No file is written.
        DataError: the patch or the checkpoint is damaged, or none. No file is written.
        ResultError: the checkpoint cannot be written.
    """
    from tna_onnx.pipeline.patch import adaptable, apply_patch, read_patch, recalibrated_checkpoint  # noqa: PLC0415 - heavy

    check_targets(json, others=[model, patch, output, checkpoint])
    source = open_source(model, ModelOptions())
    target = _target(source, output, checkpoint, overwrite=overwrite)
    name = "the patch"
    adapter = False
    if not isinstance(patch, bytes):
        name = str(patch)
        adapter = check_patch_name(patch) == ".onnx_adapter"
    if adapter and checkpoint is not None:
        raise UsageError(f"{name}: --checkpoint takes a patch as .npz or .safetensors, not an adapter")
    if adapter:
        file = adaptable(source, Path(name))
    elif isinstance(patch, bytes):
        file = apply_patch(source, patch, name)
    else:
        file = apply_patch(source, read_patch(patch), name)
    of_model = target if checkpoint is None else None
    with pending(source, file.proto, of_model, verbatim=file is source, large_values=file.large_values) as path:
        result = verify(source.path or model, path)
        if adapter and all(difference.part == "input" for difference in result.differences):
            inputs = tuple(replace(difference, explained="with a default") for difference in result.differences)
            result = replace(result, differences=inputs, intact=True, reason="", notes=())
        if not result.intact:
            raise CheckFailed(
                f"{name}: the patched file is not {source.name} with the recorded change: {result.reason}"
            )
    if checkpoint is not None and target is not None:
        write_bytes(target, recalibrated_checkpoint(source, file, Path(checkpoint)))
    return save_json(json, replace(result, recalibrated=str(target)))


def _target(model: Model, output: str | Path | None, checkpoint: str | Path | None, *, overwrite: bool) -> Path | None:
    """Return the path to write; None for a model that is no file."""
    if checkpoint is None:
        return file_beside(model, output, ".tna.onnx", overwrite=overwrite)
    old = Path(checkpoint)
    target = old.with_suffix(".tna.safetensors") if output is None else Path(output)
    check_output(model, target)
    if target.exists() and old.exists() and target.samefile(old) and not overwrite:
        raise UsageError(f"{target}: is the checkpoint; allow it to be replaced with --overwrite, or name another file")
    return target


def edit_decision(
    model: ModelSource,
    thresholds: Mapping[str, float],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    json: str | Path | None = None,
) -> Inspection:
    """Write a copy of a model whose output `decision` has other thresholds.

    Nothing is promised of thresholds that were set by hand, and the file says so.

    Args:
        model: a file with the output `decision`, as `guard` or `calibrate` wrote it.
        thresholds: class, by name or number -> what its probability has to reach.
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
    from tna_onnx.guarding.guarded_file import with_thresholds  # noqa: PLC0415 - heavy
    from tna_onnx.pipeline.checking import check_file  # noqa: PLC0415 - heavy

    if not thresholds:
        raise UsageError("expected a class and its threshold, such as {'spam': 0.7}")
    check_targets(json, others=[model, output])
    file = open_source(model, ModelOptions())
    target = file_beside(file, output, ".guard.onnx", overwrite=overwrite)
    before, proto = with_thresholds(file, thresholds)
    with pending(file, proto, target) as path:
        check_file(before, path)
    assert target is not None  # noqa: S101 - only a dry run has none
    return save_json(json, inspect(target))
