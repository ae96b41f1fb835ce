"""A verified model gets its name: in one step, whatever ends the process on the way.

    1. The data file moves to its name, `NAME.onnx.DIGEST.data`. No model refers to that name yet, or one that has the
       same bytes.
    2. The model is renamed over the old one. Before this the name opens as the old model with the old data, after it as
       the new model with the new data.
    3. Data files that earlier models of this name have left are removed.

A run that is killed between two steps leaves a data file that nothing refers to; step 3 of the next run removes it. One
run at a time is in steps 1 and 2, or removes: what nothing refers to yet may be the data of a model that comes next.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import mmap
import os
import re
from pathlib import Path

from tna_onnx.errors import UsageError
from tna_onnx.files import alone_in, keep_mode, open_regular, sync_folder
from tna_onnx.graph.external import DIGITS

__all__ = ["commit"]

# A file above this size that is not called .onnx is no model with external data; it is not searched for a name.
_MAX_SEARCHED = 2**26


def commit(temporary: Path, data: Path | None, output: Path) -> None:
    """Move a model and its external data to their place.

    Args:
        temporary: the model, on the disk, in a folder of its own beside the output.
        data: its data file, if it has one.
        output: where it goes.

    Raises:
        UsageError: a file cannot be written.
    """
    folder = output.absolute().parent
    try:
        with alone_in(folder):
            _rename(temporary, data, output)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from error
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
    """Do step 1; returns the new file, None if it was there already.

    Raises:
        UsageError: something else has its name.
    """
    if not os.path.lexists(place):
        data.replace(place)
        sync_folder(place.absolute().parent)
        return place
    if place.is_symlink() or not place.is_file() or not filecmp.cmp(data, place, shallow=False):
        raise UsageError(f"{place}: is the name of the new model's external data, and holds something else; remove it")
    return None


def _remove_old_data(folder: Path, output: Path) -> None:
    """Do step 3, for files that are ours by name, hold what the name says, and belong to no model."""
    pattern = re.compile(re.escape(output.name) + rf"\.([0-9a-f]{{{DIGITS}}})\.data")
    # Large files are read before others have to wait.
    found = [path for path in folder.iterdir() if _is_intact(path, pattern)]
    if not found:
        return
    with alone_in(folder) as alone:
        for path in found:
            with contextlib.suppress(OSError):
                if alone and not _named_in_folder(path):
                    path.unlink()


def _is_intact(path: Path, pattern: re.Pattern[str]) -> bool:
    """Whether a file is called like data of the model, and has the digest that it is called by."""
    match = pattern.fullmatch(path.name)
    if match is None:
        return False
    try:
        return _digest(path).startswith(match[1])
    except OSError:
        return False


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def _named_in_folder(data: Path) -> bool:
    """Whether a file in the folder may refer to a data file: the model itself, or a copy of an old one."""
    for path in data.parent.iterdir():
        if path == data or not path.is_file() or path.suffix == ".data":
            continue
        if path.stat().st_size > _MAX_SEARCHED and ".onnx" not in path.name:
            continue
        with open_regular(path.resolve()) as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                continue  # an empty file cannot be mapped
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(data.name.encode()) >= 0:
                    return True
    return False
