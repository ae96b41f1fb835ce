"""Files and inputs that the tests of the data layer share."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tna_onnx.data.formats import open_request
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Request
from tna_onnx.data.source import InputSpec, IntArray, Source
from tna_onnx.data.sources.image_files import FolderImages, ImageSource, open_folder


def spec(name: str = "x", shape: tuple[int | None, ...] = (None, 4), dtype: npt.DTypeLike = np.float32) -> InputSpec:
    return InputSpec(name, shape, np.dtype(dtype))


def open_source(
    data: Any, inputs: Sequence[InputSpec], n_classes: int, recipe: Recipe | None = None, **words: Any
) -> Source:
    """Open labelled samples, of any kind, for the inputs of a model; `words` are fields of `Request`."""
    return open_request(Request(data, preprocessing=recipe, inputs=inputs, n_classes=n_classes, **words))


def write_npz(path: Path, arrays: Mapping[str, npt.ArrayLike]) -> Path:
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


def write_columns(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns as a file of the kind that its suffix says."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").table({name: list(values) for name, values in columns.items()})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in columns.values()]
        rows = [*zip(*lists, strict=True)]
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        if path.suffix == ".csv":
            lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines), "utf-8")
    return path


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Pixels (H, W, C), or (H, W) for one channel."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(seed: int, kind: str = "PNG") -> bytes:
    """Return the image file of `noise(5, 6, seed=seed)`."""
    stream = io.BytesIO()
    Image.fromarray(noise(5, 6, seed=seed)).save(stream, kind)
    return stream.getvalue()


def write_image(path: Path, pixels: npt.NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_folder(root: Path, names: Sequence[str], height: int = 5, width: int = 6) -> Path:
    """Write an image of its own under each of the names, which are paths below `root`."""
    for seed, name in enumerate(names):
        write_image(root / name, noise(height, width, seed=seed))
    return root


def gather(source: Source, size: int, rows: IntArray | None = None) -> dict[str, npt.NDArray[np.generic]]:
    """Join the batches along axis 0."""
    batches = list(source.batches(size, rows))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


ANY_SIZE = InputSpec("image", (None, 3, None, None), np.dtype(np.float32))
TWO = ["0/a.png", "1/b.png"]


def open_images(
    root: Path,
    n_classes: int = 2,
    recipe: Recipe | None = None,
    wanted: InputSpec = ANY_SIZE,
    *,
    skip_bad: bool = False,
) -> ImageSource:
    return open_folder(root, Request(inputs=[wanted], n_classes=n_classes, preprocessing=recipe, skip_bad=skip_bad))


def names(source: ImageSource) -> tuple[str, ...]:
    """Return the paths of the images of a folder."""
    assert isinstance(source.files, FolderImages)
    return source.files.names


LISTED = ["b.png", "sub/a.png", "c d.png"]
LISTS = [
    ("a.csv", "path,label\nb.png,cat\nsub/a.png,dog\n"),
    ("a.csv", "\ufeffLabel , other,FILENAME\ncat,1,b.png\ndog,2,sub/a.png\n"),
    ("a.csv", 'image,class\n"b.png","cat"\r\nsub/a.png, dog\r\n'),
    ("a.tsv", "path\tlabel\nb.png\tcat\nsub/a.png\tdog\n"),
    ("a.jsonl", '{"path": "b.png", "label": "cat"}\n\n{"label": "dog", "path": "sub/a.png"}\n'),
    ("a.json", '[{"path": "b.png", "label": "cat"}, {"label": "dog", "path": "sub/a.png"}]'),
    ("a.txt", "b.png cat\nsub/a.png\tdog\n"),
]
"""Every form of a file that says: b.png is a cat, sub/a.png is a dog."""
