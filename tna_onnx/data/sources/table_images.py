"""Images in a table: which column holds them, and the bytes of each row."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.files import check_inside
from tna_onnx.data.labels import listed
from tna_onnx.data.sources.table_files import table_folder
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from typing import BinaryIO

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import IntArray
    from tna_onnx.data.sources.arrow import ArrowColumn

__all__ = ["TableImages", "image_column"]

_IMAGE_NAMES = ("image", "img")


@dataclass(frozen=True, eq=False)
class TableImages:
    """Images in a column of bytes, or of structs with `bytes` or `path`, of a mapped table."""

    path: Path
    files: tuple[Path, ...]
    column: ArrowColumn
    data_root: Path | None = None

    def __len__(self) -> int:
        """Return their number."""
        return self.column.shape[0]

    def name(self, row: int) -> str:
        """Return the path of the table and the row."""
        return f"{self.path}: row {row}"

    def open(self, row: int) -> Path | BinaryIO:
        """Return the bytes of image `row`, or its path where only that is stored."""
        content = self.column.value(row)
        path = None
        if isinstance(content, dict):
            path = content.get("path")
            content = content.get("bytes")
        if content is not None:
            return io.BytesIO(content)
        if path:
            folder = table_folder(self.path)
            check_inside(folder, [str(path)], self.name(row), self.data_root)
            return folder / str(path)
        raise DataError(f"{self.name(row)}: holds no image; remove that row")

    def digest(self, rows: IntArray, labels: IntArray, contents: object) -> str:  # noqa: ARG002 - whole files count
        """Return SHA-256 (hex) over the bytes of all files of the table, in order, and the labels."""
        return files_sha256(self.files, labels)


def image_column(pyarrow: Any, schema: Any, request: Request, label_name: str | None, path: Path) -> str | None:
    """Return the name of the column that holds the images of the model's only input; None if samples are numbers.

    Raises:
        DataError: several columns may hold them, or none that is known.
    """
    if len(request.inputs) != 1:
        return None
    types = pyarrow.types
    kinds = {field.name: field.type for field in schema}
    candidates: list[str] = [
        column for column, kind in kinds.items() if column != label_name and _holds_images(types, kind)
    ]
    name = request.inputs[0].name
    if name in kinds:
        if name in candidates:
            return name
        return None
    if len(candidates) > 1:  # a mask beside the image, say
        candidates = [column for column in _IMAGE_NAMES if column in candidates] or candidates
    if len(candidates) == 1:
        return candidates[0]
    if candidates or any(types.is_struct(kind) for kind in kinds.values()):
        raise DataError(
            f"{path}: no column is known to hold the images (found {listed(kinds)}); call it 'image' or after the "
            f"model's input, {name!r}"
        )
    return None


def _holds_images(types: Any, kind: Any) -> bool:
    if types.is_struct(kind):  # as `datasets` stores an image
        return {field.name for field in kind} <= {"bytes", "path"}
    return bool(types.is_binary(kind) or types.is_large_binary(kind))
