"""A model in memory, whoever made it -> the bytes of a file."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.message import EncodeError

from tna_onnx.errors import UsageError

__all__ = ["model_bytes"]


def model_bytes(source: Any) -> bytes:
    """Return a model in memory as the bytes of a file.

    Args:
        source: bytes, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph; never modified.

    Raises:
        UsageError: it is no model, or one above 2 GB.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    package = type(source).__module__.partition(".")[0]
    if isinstance(source, onnx.ModelProto):
        return _serialized(source)
    # By name of the package, so that neither is imported unless the caller has done so.
    if package == "onnx_ir":
        return _serialized(_from_onnx_ir(source))
    if package == "onnx_graphsurgeon":
        import onnx_graphsurgeon  # noqa: PLC0415 - there already, or there would be no such graph

        return _serialized(onnx_graphsurgeon.export_onnx(source))
    raise UsageError(
        f"expected a path, bytes, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, got "
        f"{type(source).__name__}; export it to ONNX first (torch.onnx.export, skl2onnx.to_onnx)"
    )


def _serialized(proto: onnx.ModelProto) -> bytes:
    try:
        # A copy: the caller may go on editing.
        data: bytes = proto.SerializeToString(deterministic=True)
    except (ValueError, EncodeError) as error:
        raise UsageError(
            f"the model in memory is above 2 GB: save it with external data and pass the path ({error})"
        ) from error
    return data


def _from_onnx_ir(model: Any) -> onnx.ModelProto:
    import onnx_ir  # noqa: PLC0415 - there already, or there would be no such model

    proto: onnx.ModelProto = onnx_ir.to_proto(onnx_ir.external_data.load_to_model(model.clone()))
    return proto
