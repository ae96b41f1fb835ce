"""Test images of CIFAR-10, CIFAR-100, SVHN and ImageNet in folders as torchvision lays them out.

    cifar10     cifar-10-batches-py/test_batch              pickle: data (N, 3072) uint8, labels
    cifar100    cifar-100-python/test                       pickle: data (N, 3072) uint8, fine_labels
    svhn        test_32x32.mat                              MATLAB: X (32, 32, 3, N) uint8, y (N, 1), 10 for the digit 0
    imagenet    val/n01440764/*.JPEG                        a folder for each class, in the order of the classes
    any         a folder for each class, as `torchvision.datasets.ImageFolder` reads them

Pickles are read with nothing but arrays and plain values allowed: one from elsewhere cannot run code.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a pickled array is made of, by module and name; the module was renamed in NumPy 2.
_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}
_ENDINGS = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images in memory: `values` (N, 3, H, W) uint8 and `labels` (N,)."""

    values: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Files:
    """Images as files: `paths` below `root` and `labels` (N,)."""

    root: Path
    paths: tuple[Path, ...]
    labels: NDArray[np.int64]


class _Plain(pickle.Unpickler):
    """Arrays and plain values, and nothing that runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in a file of CIFAR")
        return super().find_class(module, name)


def read(dataset: str, folder: Path) -> Pixels | Files:
    """Return the test images in a folder.

    Args:
        dataset: `cifar10`, `cifar100`, `svhn` or `imagenet`.
        folder: what torchvision has as `root`, or a folder with a folder for each class.

    Raises:
        FileNotFoundError: neither is there.
    """
    if dataset == "cifar10" and (batch := folder / "cifar-10-batches-py" / "test_batch").is_file():
        return _cifar(batch, "labels")
    if dataset == "cifar100" and (batch := folder / "cifar-100-python" / "test").is_file():
        return _cifar(batch, "fine_labels")
    if dataset == "svhn" and (file := folder / "test_32x32.mat").is_file():
        return _svhn(file)
    for root in (folder / "val", folder):
        if root.is_dir() and (files := _class_folders(root)) is not None:
            return files
    raise FileNotFoundError(f"{folder}: expected {dataset} as torchvision lays it out, or a folder for each class")


def _cifar(path: Path, labels: str) -> Pixels:
    with path.open("rb") as stream:
        # the files were written by Python 2: names are bytes
        stored = {_text(name): value for name, value in _Plain(stream, encoding="bytes").load().items()}
    # rows of 3,072: 1,024 red, 1,024 green, 1,024 blue, each 32 rows of 32
    values = np.asarray(stored["data"], np.uint8).reshape(-1, 3, 32, 32)
    return Pixels(values, np.asarray(stored[labels], np.int64))


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _svhn(path: Path) -> Pixels:
    from scipy.io import loadmat  # noqa: PLC0415 - heavy

    stored = loadmat(path)
    labels = np.ravel(stored["y"]).astype(np.int64)
    # torchvision has the digit 0 as class 0 too
    labels[labels == 10] = 0
    return Pixels(np.ascontiguousarray(np.transpose(stored["X"], (3, 2, 0, 1))), labels)


def _class_folders(root: Path) -> Files | None:
    """Return the images below folders of classes, whose order is that of their names; None without any."""
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    paths: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        own = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)
        paths += own
        labels += [label] * len(own)
    if not paths:
        return None
    return Files(root, tuple(paths), np.array(labels, np.int64))
