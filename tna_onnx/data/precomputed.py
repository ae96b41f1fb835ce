"""Features or logits that were computed before, with labels: fitting on them needs neither data nor a session.

A `.npz` file, or a folder of `.npy` files, with an array `features` (N, n), the vectors in front of the head, or
`logits` (N, C), natural logarithms before any softmax; and `labels`. Where both are there, features count.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from tna_onnx.data.columns import LABELS, ArraySource, check_names, open_columns
from tna_onnx.data.digest import files_sha256
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.npfiles import map_npy, read_npz
from tna_onnx.data.request import Request
from tna_onnx.data.source import AnyArray, Batch, InputSpec, IntArray
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Kind", "Precomputed", "open_precomputed"]

Kind: TypeAlias = Literal["features", "logits"]


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Features or logits of N samples; a `Source` whose batches have the one array `kind`.

    Attributes:
        kind: which of the two.
        source: the values and labels.
    """

    kind: Kind
    source: ArraySource

    @property
    def values(self) -> AnyArray:
        """Features (N, n) or logits (N, C), mapped where they lie in a file of their own."""
        values = self.source.columns[self.kind]
        assert isinstance(values, np.ndarray)  # noqa: S101 - for the type checker: opened below
        return values

    @property
    def labels(self) -> IntArray:
        """Class indices (N,)."""
        return self.source.labels

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def describe(self) -> str:
        """Return one line for reports."""
        return self.source.describe()

    def recipe(self) -> None:
        """Return None: how the values were made is not known."""

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield {kind: values (B, n)}; see `Source.batches`."""
        return self.source.batches(size, rows)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the contents."""
        return self.source.digest()


def open_precomputed(
    path: str | Path,
    inputs: Sequence[InputSpec],
    n_classes: int,
    *,
    labels: str | Path | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
) -> Precomputed | None:
    """Open features or logits; None if there are none, or if the model has an input of that name.

    Args:
        path: `.npz` file, or folder with `.npy` files.
        inputs: the model's inputs.
        n_classes: the number of classes of the model.
        labels: as in `open_source`.
        class_names: as in `open_source`.

    Raises:
        DataError: the file cannot be read, or values or labels cannot be used.
    """
    path = Path(path)
    names = _names(path)
    taken = {spec.name for spec in inputs}
    kind = next((kind for kind in get_args(Kind) if kind in names and kind not in taken), None)
    if kind is None or taken & set(names):
        return None
    apart = Path(labels) if isinstance(labels, (str, Path)) else labels
    arrays, hashed = _read(path, [kind, LABELS] if apart is None else [kind], names)
    values = arrays[kind]
    if values.ndim != 2 or values.dtype.kind != "f" or (kind == "logits" and values.shape[1] not in (n_classes, 1)):
        wanted = (
            "(N, n), the vectors in front of the head" if kind == "features" else f"(N, {n_classes}), one per class"
        )
        raise DataError(f"{path}: {kind!r} must be floating-point {wanted}; found {values.shape} {values.dtype}")
    request = Request([InputSpec(kind, (None, values.shape[1]), values.dtype)], n_classes, None, apart, class_names)
    stored = labels_apart(request, arrays.get(LABELS))
    title = f"{kind} {path.resolve().name}"
    return Precomputed(kind, open_columns(title, str(path), request, {kind: values}, stored, hashed=hashed))


def _names(path: Path) -> list[str]:
    """Return the names of the arrays in a file or folder; none if it holds something else."""
    if path.is_dir():
        return [file.stem for file in path.glob("*.npy")]
    if path.suffix.lower() != ".npz" or not path.is_file():
        return []
    found: list[str] = []

    def choose(names: list[str]) -> list[str]:
        found.extend(names)
        return []

    read_npz(path, choose)
    return found


def _read(path: Path, wanted: list[str], names: Sequence[str]) -> tuple[dict[str, AnyArray], Callable[[IntArray], str]]:
    """Return the wanted arrays, and what computes the digest."""
    check_names(str(path), names, [InputSpec(name, (), np.dtype(float)) for name in wanted if name != LABELS],
                need_labels=LABELS in wanted)  # fmt: skip
    if path.is_dir():
        files = {name: path / f"{name}.npy" for name in wanted}
        arrays = {name: map_npy(file) for name, file in files.items()}
        return arrays, lambda labels: files_sha256([files[wanted[0]]], labels)
    arrays, sha256 = read_npz(path, lambda _: wanted)
    return arrays, lambda _: sha256
