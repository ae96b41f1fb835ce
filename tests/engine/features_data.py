"""Data whose features the tests of `features -o` compute in several ways."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import ROOT

MODEL = ROOT / "models/digits/model.onnx"
N = 600


def tensors(x: Any) -> Any:
    """Return an array as an Arrow column of tensors."""
    import pyarrow as pa

    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x[0].size)
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), x.shape[1:]), lists)


def rows() -> Any:
    """Return an Arrow table: images as tensors, labels, keys."""
    import pyarrow as pa

    with np.load(ROOT / "models/digits/calib.npz") as file:
        x, labels = file["image"][:N], file["labels"][:N]
    return pa.table({"image": tensors(x), "label": labels, "key": [f"k{row}" for row in range(N)]})


def write_files(folder: Path, count: int) -> Path:
    """Write the rows into some files, shuffled where there are several."""
    import pyarrow.parquet as pq

    folder.mkdir()
    order = np.random.default_rng(count).permutation(N) if count > 1 else np.arange(N)
    for k, part in enumerate(np.array_split(order, count)):
        pq.write_table(rows().take(part), folder / f"{k}.parquet", row_group_size=150)
    return folder


def write_images(folder: Path, count: int = 120) -> Path:
    """Write PNG files in class folders."""
    from PIL import Image

    with np.load(ROOT / "models/digits/calib.npz") as file:
        x, labels = file["image"][:count], file["labels"][:count]
    for row in range(count):
        path = folder / str(labels[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.clip(x[row, 0], 0, 1) * 255).astype(np.uint8)).save(path)
    return folder


def by_key(place: str | Path) -> dict[str, tuple[int, bytes]]:
    """Return label and bits of the features of each sample in a folder of feature files."""
    import pyarrow.parquet as pq

    table = pq.read_table(str(place))
    values = np.stack(table["features"].to_numpy()).astype(np.float32)
    cells = zip(table["key"].to_pylist(), table["label"].to_pylist(), values, strict=True)
    return {key: (label, row.tobytes()) for key, label, row in cells}


def with_nan(table: Any, path: Path) -> None:
    """Write a table whose last image is not finite."""
    import pyarrow.parquet as pq

    x = table["image"].combine_chunks().to_numpy_ndarray().copy()
    x[-1] = np.nan
    pq.write_table(table.set_column(0, "image", tensors(x)), path)
