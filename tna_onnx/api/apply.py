"""`apply`: make a recalibrated file of its source and a patch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tna_onnx.api.arguments import kept
from tna_onnx.api.verify import verify
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import open_source
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.pipeline.settings import check_patch_name
from tna_onnx.results.evaluation import ModelDifference

__all__ = ["apply"]


def apply(
    model: ModelSource,
    patch: str | Path | bytes,
    *,
    output: str | Path | None = None,
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
        overwrite: allow the output to be the input.
        json: JSON file to write.

    Returns:
        In what the new file differs from the model, as `verify` has found it.

    Raises:
        UsageError: a path that cannot be used.
        UnsupportedModel: the model cannot be read.
        CheckFailed: the patch belongs to another model. No file is written.
        DataError: the patch is damaged, or none. No file is written.
    """
    from tna_onnx.pipeline.adapter import adaptable  # noqa: PLC0415 - scipy: heavy
    from tna_onnx.pipeline.patch import apply_patch, read_patch  # noqa: PLC0415 - scipy: heavy

    source = open_source(model, ModelOptions())
    target = file_beside(source, output, ".tna.onnx", overwrite=overwrite)
    name = "the patch" if isinstance(patch, bytes) else str(patch)
    adapter = not isinstance(patch, bytes) and check_patch_name(patch) == ".onnx_adapter"
    if adapter:
        file = adaptable(source, Path(name))
    else:
        file = apply_patch(source, patch if isinstance(patch, bytes) else read_patch(patch), name)
    with pending(source, file.proto, target, verbatim=file is source, apart=file.apart) as path:
        result = verify(source.path or model, path)
        if adapter and all(each.part == "input" for each in result.differences):
            inputs = tuple(replace(each, explained="with a default") for each in result.differences)
            result = replace(result, differences=inputs, intact=True, reason="", notes=())
        if not result.intact:
            raise CheckFailed(f"{name}: the file that it gives is not {source.name} and a change: {result.reason}")
    return kept(json, replace(result, recalibrated=str(target)))
