"""Files and inputs that the tests of the data layer share."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tna_onnx.data import InputSpec, IntArray, Source


def spec(name: str = "x", shape: tuple[int | None, ...] = (None, 4), dtype: npt.DTypeLike = np.float32) -> InputSpec:
    return InputSpec(name, shape, np.dtype(dtype))


def write_npz(path: Path, arrays: Mapping[str, npt.ArrayLike]) -> Path:
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Pixels (H, W, C), or (H, W) for one channel."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


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
