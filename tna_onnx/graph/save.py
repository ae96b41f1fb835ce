"""Writing a model to a file, all or nothing: checked in a temporary folder, and only then moved.

1. The data file moves to `NAME.onnx.DIGEST.data`. The name follows its contents, so models and data cannot be mixed up.
2. The model is renamed over the old one: its name opens the old model with its data before, the new one after.
3. Data files that earlier models of this name have left are removed, also those of a run that was killed.

A lock keeps other runs out of these steps. Of the source's data files only the places that tensors name are copied, in
order, at the same position modulo 64 KB; a new value of the same size takes the place of the old one.
"""

import contextlib
import filecmp
import hashlib
import itertools
import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx

from tna_onnx.errors import UnsupportedModel, UsageError, writing
from tna_onnx.files import (
    alone_in,
    keep_mode,
    model_name_problem,
    open_regular,
    resolved,
    sync_folder,
    temporary_folder,
    write_new,
)
from tna_onnx.graph.bounds import MAX_BYTES, all_tensors
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import LargeValues, Place, is_external, pieces, place_of, require_bytes, total_size

# Hexadecimal digits of the SHA-256 of a data file in its name: few, so that a person can tell the file by it.
_DIGITS = 8

# Runtimes map tensors straight from the file; 64 KB is the coarsest granularity of the systems they run on.
_ALIGNMENT = 2**16

# Bytes copied at a time: files may be larger than memory.
_BLOCK = 2**22

# A file above this size that is not called .onnx is no model with external data; it is not searched for a name.
_MAX_SEARCHED = 2**26


def commit(temporary: Path, data: Path | None, output: Path) -> None:
    """Move a model and its external data to their place.

    `temporary`: the model, on the disk, in a folder of its own beside the output.
    """
    folder = output.absolute().parent
    with writing(output, UsageError), alone_in(folder):
        _rename(temporary, data, output)
    # What cannot be read or removed stays: the model is written.
    with contextlib.suppress(OSError):
        _remove_old_data(folder, output)


def _rename(temporary: Path, data: Path | None, output: Path) -> None:
    keep_mode(temporary, output)
    place = None
    if data is not None:
        place = _place_data(data, output.with_name(data.name))
    try:
        temporary.replace(output)  # step 2: until here, the earlier model stands
    except BaseException:
        # An interrupt, too, must not leave data that nothing refers to; after the rename, the new model does.
        if place is not None and os.path.lexists(temporary):
            place.unlink()
        raise
    sync_folder(output.absolute().parent)


def _place_data(data: Path, place: Path) -> Path | None:
    """Do step 1; returns the new file, None if it was there already."""
    if not os.path.lexists(place):
        data.replace(place)
        sync_folder(place.absolute().parent)
        return place
    if place.is_symlink() or not place.is_file() or not filecmp.cmp(data, place, shallow=False):
        raise UsageError(
            f"{place}: the new model's external data get this name, which another file has; remove that file"
        )
    return None


def _remove_old_data(folder: Path, output: Path) -> None:
    """Do step 3: remove data files of earlier models of this name that no model refers to."""
    pattern = re.compile(re.escape(output.name) + rf"\.[0-9a-f]{{{_DIGITS}}}\.data")
    old_files = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    if not old_files:
        return
    with alone_in(folder) as alone:
        for path in old_files:
            with contextlib.suppress(OSError):
                if alone and not _named_in_folder(path):
                    path.unlink()


def _named_in_folder(data: Path) -> bool:
    """Whether any file in the folder, such as the model or a copy of an older one, mentions a data file."""
    for path in data.parent.iterdir():
        if path == data or not path.is_file() or path.suffix == ".data":
            continue
        if path.stat().st_size > _MAX_SEARCHED and ".onnx" not in path.name:
            continue
        with open_regular(resolved(path)) as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                continue  # an empty file cannot be mapped
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(data.name.encode()) >= 0:
                    return True
    return False


def check_output(model: Model, output: Path, *, overwrite: bool = False) -> None:
    """Refuse an output path before any work is done."""
    if problem := model_name_problem(output):
        raise UsageError(problem)
    folder = output.absolute().parent
    # What many tools take for standard output; here it would become a file of that name.
    if str(output) == "-":
        raise UsageError("-: expected the name of a file; a model cannot go to standard output")
    if not folder.is_dir():
        raise UsageError(f"{output}: folder {folder} does not exist; create it or choose another --output")
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; expected a file name such as model.tna.onnx")
    if output.exists() and not output.is_file():  # a device, pipe or socket, which renaming would replace
        raise UsageError(f"{output}: is not a regular file; use --dry-run to write nothing")
    # By file, not by name: a link or another spelling may lead to the same.
    same = model.path is not None and output.exists() and output.samefile(model.path)
    if same and not overwrite:
        raise UsageError(f"{output}: output is the input model; choose another --output, or pass --overwrite")
    if any(_places(model.folder / name) & _places(output) for name in model.external_files):
        raise UsageError(f"{output}: is the external data of the input model; choose another --output")
    # Renaming over a file needs no right to write it; a file that is read-only is meant to stay.
    if not os.access(folder, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        raise UsageError(f"{output}: cannot be written; choose another --output, or change the permissions")


def file_beside(
    model: Model, output: str | Path | None, ending: str, *, overwrite: bool = False, dry_run: bool = False
) -> Path | None:
    """Return the path to write: `output`, else one beside the model; None in a dry run of a model that is no file."""
    if output is not None:
        target = Path(output)
    elif model.path is not None:
        target = model.path.with_suffix(ending)
    elif dry_run:
        return None
    else:
        raise UsageError("a model in memory needs output, the path of the file to write")
    if output is not None or not dry_run:
        check_output(model, target, overwrite=overwrite)
    return target


def _places(path: Path) -> set[Path]:
    """Return the path with its folder resolved, and the file that it links to."""
    return {resolved(path.parent) / path.name, resolved(path)}


@contextlib.contextmanager
def pending(
    model: Model,
    proto: onnx.ModelProto,
    output: Path | None,
    *,
    verbatim: bool = False,
    keep: bool = True,
    large_values: LargeValues | None = None,
) -> Iterator[Path]:
    """Write a model, with its external data, into a temporary folder; move it to `output` when the block ends well.

    The temporary folder lies beside `output`, so that moving is renaming. Without `output` nothing is kept.

    `verbatim`: write the source's bytes unchanged. With external data, only the name of the data file is new. `keep`:
    whether the file is moved to `output`; if not, it is only written beside it. `large_values`: values whose keys stand
    in the new model; those of the source by default.
    """
    name = "model.onnx"
    parent = None  # the system's folder for temporary files
    if output is not None:
        name = output.name
        parent = output.absolute().parent
    with contextlib.ExitStack() as stack:
        with writing(output or tempfile.gettempdir(), UsageError):
            folder = stack.enter_context(temporary_folder(parent))
        temporary = folder / name
        with writing(output or name, UsageError):
            if large_values is None:
                large_values = model.large_values
            data = _write(model, proto, temporary, large_values, verbatim=verbatim)
        del proto, large_values  # the caller may have no more use for them
        yield temporary
        if output is not None and keep:
            commit(temporary, data, output)


def written_files(written: Path, output: Path | str | None) -> tuple[str, ...]:
    """Return the paths that a model in its temporary folder, and its external data, get; none without `output`."""
    if not output:
        return ()
    data_files = sorted(file.name for file in written.parent.iterdir() if file != written)
    return (str(output), *(str(Path(output).with_name(name)) for name in data_files))


def _write(
    model: Model, proto: onnx.ModelProto, path: Path, large_values: LargeValues, *, verbatim: bool
) -> Path | None:
    """Write a model, and return the file with its external data, if it has one."""
    if model.external_files:
        data_file = _write_external(model, proto, path)
        write_new(path, *_serialized(proto, path, large_values))
        return data_file
    if verbatim and model.path is not None:
        data = model.path.read_bytes()
        if hashlib.sha256(data).hexdigest() != model.sha256:
            raise UsageError(f"{model.path}: was changed while it was being read; start again")
        write_new(path, data)
    else:
        write_new(path, *_serialized(proto, path, large_values))
    return None


def _serialized(proto: onnx.ModelProto, path: Path, large_values: LargeValues) -> list[memoryview]:
    if total_size(proto, large_values) > MAX_BYTES:
        raise UnsupportedModel(
            f"{path.name}: the model without its external data is above 2 GB; save more of it as external data"
        )
    return pieces(proto, large_values)


def _write_external(model: Model, proto: onnx.ModelProto, output: Path) -> Path:
    """Copy the source's external data into a file beside `output`, with new values in their places; return that file.

    `proto`: the new model, edited here: places of external data, and new values that move out of it.
    """
    new_values = _moved_out(model, proto)
    tensors = [tensor for tensor in all_tensors(proto) if is_external(tensor)]
    by_place = {place_of(tensor): tensor for tensor in tensors}
    ordered = sorted(by_place, key=lambda place: (place.location, place.offset))
    copied_to: dict[Place, int] = {}
    draft = output.with_name("data")
    with draft.open("xb") as stream:
        out = _Output(stream)
        for location, places in itertools.groupby(ordered, key=lambda place: place.location):
            with model.open_data(location) as source:
                size = source.seek(0, 2)
                for place in places:
                    require_bytes(model.path or Path(), by_place[place], place, size)
                    copied_to[place] = out.align(place.offset)
                    if place in new_values:
                        out.write(new_values[place])
                    else:
                        _copy(source, place, out)
        stream.flush()
        os.fsync(stream.fileno())  # a rename may reach the disk before the data do
    data = output.with_name(f"{output.name}.{out.digest.hexdigest()[:_DIGITS]}.data")
    draft.rename(data)
    # Last: above, places are still those of the source.
    for tensor in tensors:
        _move(tensor, copied_to[place_of(tensor)], data.name)
    return data


class _Output:
    """The new file, which is written from front to end, and its digest."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._end = 0
        self.digest = hashlib.sha256()

    def align(self, offset: int) -> int:
        """Fill up with zeros to a position that is equal to `offset` modulo the alignment, and return it."""
        self.write(bytes((offset - self._end) % _ALIGNMENT))
        return self._end

    def write(self, data: bytes) -> None:
        """Write at the end."""
        self._stream.write(data)
        self.digest.update(data)
        self._end += len(data)


def _moved_out(model: Model, proto: onnx.ModelProto) -> dict[Place, bytes]:
    """Let new values of the old size refer to the place of the old ones; returns place -> value."""
    new_values: dict[Place, bytes] = {}
    for before, after in zip(model.proto.graph.initializer, proto.graph.initializer, strict=False):
        if not is_external(before) or is_external(after):
            continue
        place = place_of(before)
        if len(after.raw_data) != place.length or _overlapped(model, before):
            continue  # the new value stays inside the model
        new_values[place] = after.raw_data
        # Back to where it was: the model stays small enough for one protobuf.
        after.ClearField("raw_data")
        after.data_location = onnx.TensorProto.EXTERNAL
        after.external_data.extend(before.external_data)
    return new_values


def _overlapped(model: Model, tensor: onnx.TensorProto) -> bool:
    """Whether another tensor has some of the same bytes: writers may store equal tensors once."""
    place = place_of(tensor)
    neighbours = (tensor_ for tensor_ in all_tensors(model.proto) if tensor_ is not tensor and is_external(tensor_))
    return any(place_of(neighbour).overlaps(place) for neighbour in neighbours)


def _copy(source: BinaryIO, place: Place, out: _Output) -> None:
    source.seek(place.offset)
    for start in range(0, place.length, _BLOCK):
        out.write(source.read(min(_BLOCK, place.length - start)))


def _move(tensor: onnx.TensorProto, offset: int, name: str) -> None:
    """Refer to the new file, which may go on behind the tensor where the old one ended."""
    length = place_of(tensor).length
    entries = {entry.key: entry.value for entry in tensor.external_data}
    entries.pop("checksum", None)  # of the old file as a whole
    entries |= {"location": name, "offset": str(offset), "length": str(length)}
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
