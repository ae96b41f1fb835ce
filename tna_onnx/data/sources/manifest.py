"""Samples from a manifest: a file that lists the path and the label of each image.

What the file looks like is said in `tna_onnx.data.labelfile`. Paths count from the folder that the manifest is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tna_onnx.data.files import check_inside
from tna_onnx.data.labelfile import read_label_file
from tna_onnx.data.labels import label_indices
from tna_onnx.data.sources.folder import FolderImages, require_files
from tna_onnx.data.sources.images import ImageSource, open_image_files
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.request import Request

__all__ = ["open_manifest"]


def open_manifest(path: Path, request: Request) -> ImageSource:
    """Read the manifest `path`; no image is decoded yet, unless bad ones are to be skipped.

    Raises:
        UsageError: Pillow is missing, the recipe cannot be used for this input, or labels are given apart.
        DataError: the input does not take images, the manifest cannot be read, or has no usable paths or labels.
    """
    request.no_labels_apart(str(path))
    image_input = request.image_input(str(path))
    table = read_label_file(path, request.label_column, is_path=lambda _: True, limits=request.limits)
    if table.paths is None:
        raise DataError(
            f"{path}: no column holds the paths of the images (found {', '.join(map(repr, table.others)) or 'labels'} "
            "only); call it 'path'"
        )
    labels = label_indices(
        request.labels_read(table.labels), len(table.paths), request.n_classes, str(path), request.class_names
    )
    if not request.skip_bad:  # else a missing file is one that cannot be read: it is left out and counted
        require_files(path.parent, table.paths, str(path))
    check_inside(path.parent, table.paths, str(path), request.data_root)
    files = FolderImages(path.parent, table.paths)
    return open_image_files(f"manifest {path.name}", str(path), files, labels, request, image_input)
