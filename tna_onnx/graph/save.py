"""A model -> a file, all or nothing: written under a temporary name, checked there, and only then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import onnx

from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.load import Model

__all__ = ["check_output", "pending"]

_PROTOBUF_LIMIT = 2**31 - 1


def check_output(model: Model, output: Path, *, overwrite: bool = False) -> None:
    """Refuse an output path before any work is done.

    Raises:
        UsageError: the folder is missing or not writable, the path is a folder, is the input and `overwrite` is not
            given, is its external data, or leaves them behind.
    """
    folder = output.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{output}: folder {folder} does not exist; create it or choose another --output")
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; expected a file name such as model.tna.onnx")
    if output.exists() and output.samefile(model.path) and not overwrite:
        raise UsageError(f"{output}: output is the input model; choose another --output, or pass --overwrite")
    if any(output.absolute() == (model.path.parent / name).absolute() for name in model.external_files):
        raise UsageError(f"{output}: is the external data of the input model; choose another --output")
    if not os.access(folder, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        raise UsageError(f"{output}: not writable")
    if model.external_files and not folder.samefile(model.path.parent):
        raise UsageError(
            f"{output}: the model keeps tensors in {', '.join(model.external_files)}, which the new file would refer "
            f"to; write it beside the model, into {model.path.absolute().parent}"
        )


@contextlib.contextmanager
def pending(proto: onnx.ModelProto, output: Path) -> Iterator[Path]:
    """Write a model under a temporary name beside `output`; rename it when the block ends well, else remove it.

    Raises:
        UsageError: the file cannot be written.
        UnsupportedModel: the model is larger than one protobuf may be.
    """
    if proto.ByteSize() > _PROTOBUF_LIMIT:
        raise UnsupportedModel(
            f"{output}: the model without its external data is above 2 GB, which ONNX does not allow"
        )
    temporary = output.absolute().with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(proto.SerializeToString(deterministic=True))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"{output}: cannot be written: {error.strerror}") from error
        yield temporary
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
