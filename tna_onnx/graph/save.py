"""A model -> a file, all or nothing: written into a temporary folder, checked there, and only then moved."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx

from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.files import temporary_folder, write_new
from tna_onnx.graph.apart import Apart, pieces, total_size
from tna_onnx.graph.bounds import MAX_BYTES
from tna_onnx.graph.commit import commit
from tna_onnx.graph.external import write_external
from tna_onnx.graph.load import Model

__all__ = ["check_output", "file_beside", "pending"]


def check_output(model: Model, output: Path, *, overwrite: bool = False) -> None:
    """Refuse an output path before any work is done.

    Raises:
        UsageError: the folder is missing or not writable, the path is a folder, is the input and `overwrite` is not
            given, or would replace the input's external data or something other than a regular file, such as a device.
    """
    folder = output.absolute().parent
    # What many tools take for standard output; here it would become a file of that name.
    if str(output) == "-":
        raise UsageError("-: expected the name of a file; a model cannot go to standard output")
    if not folder.is_dir():
        raise UsageError(f"{output}: folder {folder} does not exist; create it or choose another --output")
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; expected a file name such as model.tna.onnx")
    if _special(output):
        raise UsageError(f"{output}: is not a regular file; use --dry-run to write nothing")
    # By file, not by name: a link or another spelling may lead to the same.
    same = model.path is not None and output.exists() and output.samefile(model.path)
    if same and not overwrite:
        raise UsageError(f"{output}: output is the input model; choose another --output, or pass --overwrite")
    if any(_places(model.folder / name) & _places(output) for name in model.external_files):
        raise UsageError(f"{output}: is the external data of the input model; choose another --output")
    # Renaming over a file needs no right to write it; a file that is read-only is meant to stay.
    if not os.access(folder, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        raise UsageError(f"{output}: not writable")


def file_beside(
    model: Model, output: str | Path | None, ending: str, *, overwrite: bool = False, dry_run: bool = False
) -> Path | None:
    """Return the path to write: `output`, else one beside the model; None in a dry run of a model that is no file.

    Args:
        model: the source.
        output: path that was asked for.
        ending: of the name by default, such as `.guard.onnx`.
        overwrite: allow the output to be the input.
        dry_run: whether nothing is written.

    Raises:
        UsageError: no such path, or one that would harm a file of the run.
    """
    if output is not None:
        target = Path(output)
    elif model.path is not None:
        target = model.path.with_suffix(ending)
    elif dry_run:
        return None
    else:
        raise UsageError("a model that is no file needs an output: the path of the file to write")
    if output is not None or not dry_run:
        check_output(model, target, overwrite=overwrite)
    return target


def _special(path: Path) -> bool:
    """Whether there is a device, pipe or socket, which renaming would replace."""
    return path.exists() and not path.is_file()


def _places(path: Path) -> set[Path]:
    """Return a path without links and dots in it, and the path that it links to."""
    return {path.parent.resolve() / path.name, path.resolve()}


@contextlib.contextmanager
def pending(
    model: Model,
    proto: onnx.ModelProto,
    output: Path | None,
    *,
    verbatim: bool = False,
    keep: bool = True,
    apart: Apart | None = None,
) -> Iterator[Path]:
    """Write a model, with its external data, into a temporary folder; move it to `output` when the block ends well.

    The temporary folder lies beside `output`, so that moving is renaming. Without `output` nothing is kept.

    Args:
        model: the source.
        proto: the new model.
        output: path to write.
        verbatim: nothing is new: the file gets the source's bytes. With external data its tensors have the same bytes,
            and only the name of the file that holds them is new.
        keep: whether the file is moved to `output`; if not, it is only written beside it.
        apart: values whose keys stand in the new model; those of the source by default.

    Raises:
        UsageError: the file cannot be written.
        UnsupportedModel: the model is larger than one protobuf may be.
    """
    name = "model.onnx"
    parent = None  # the system's folder for temporary files
    if output is not None:
        name = output.name
        parent = output.absolute().parent
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder(parent))
        except OSError as error:
            raise UsageError(f"{output or tempfile.gettempdir()}: cannot be written: {error.strerror}") from error
        temporary = folder / name
        try:
            data = _write(model, proto, temporary, model.apart if apart is None else apart, verbatim=verbatim)
        except OSError as error:
            raise UsageError(f"{output or name}: cannot be written: {error.strerror}") from error
        del proto, apart  # the caller may have no more use for them
        yield temporary
        if output is not None and keep:
            commit(temporary, data, output)


def _write(model: Model, proto: onnx.ModelProto, path: Path, apart: Apart, *, verbatim: bool) -> Path | None:
    """Write a model, and return the file with its external data, if it has one."""
    if model.external_files:
        data = write_external(model, proto, path)
        write_new(path, *_serialized(proto, path, apart))
        return data
    if verbatim and model.path is not None:
        write_new(path, _same_bytes(model, model.path))
    else:
        write_new(path, *_serialized(proto, path, apart))
    return None


def _same_bytes(model: Model, path: Path) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != model.sha256:
        raise UsageError(f"{path}: was changed while it was being read; start again")
    return data


def _serialized(proto: onnx.ModelProto, path: Path, apart: Apart) -> list[memoryview]:
    if total_size(proto, apart) > MAX_BYTES:
        raise UnsupportedModel(
            f"{path.name}: the model without its external data is above 2 GB, which ONNX does not allow"
        )
    return pieces(proto, apart)
