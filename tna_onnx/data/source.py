"""The interface of labelled samples, `Source`, and what its implementations share. Laws, tested over every source:

1. The batches joined along axis 0 are the same whatever the batch size.
2. `batches(size, rows)` gives the rows of `batches(size)` taken by index.
3. Every array of a batch is a fresh C-contiguous array in the dtype of its `InputSpec`; writing to it changes nothing.
4. `digest()` changes with any byte of the data, and does not change when the data moves.

`Part` is a subset of a source. `NO_LABELS` opens samples without labels.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tna_onnx.errors import DataError, UsageError
from tna_onnx.numerics.metrics import MIN_GROUPS

AnyArray: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.int64]
Batch: TypeAlias = dict[str, AnyArray]
"""Input name -> array (B, ...) of the samples of one batch."""

_MANY_GROUPS = 30  # from which on the spread of groups is known
_MIN_OWNERS = 10  # of several predictions a sample: two samples for each fold of cross-fitting


@dataclass(frozen=True)
class InputSpec:
    """One input of the model, as its file declares it.

    `shape` includes the batch axis, which is axis 0; None is an axis of any length. A source leaves axis 0 free:
    whether the model accepts a given batch size is for the engine to settle.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class Source(Protocol):
    """Labelled samples that fit the model's inputs; the laws are in the module's docstring."""

    @property
    def labels(self) -> IntArray:
        """Class indices, int64 (N,), in [0, number of classes)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """How it was read, for reports, such as which columns fill which inputs."""

    @property
    def sample_info(self) -> Mapping[str, AnyArray]:
        """What belongs to each sample beside inputs and label, (N,), by its role: texts, or weights."""

    @property
    def sample_form(self) -> str:
        """What sample digests are computed from; those of different forms are not comparable."""

    def sample_digests(self) -> npt.NDArray[np.uint64]:
        """Return 64 bits for each sample, (N,): equal for equal samples, whatever their place and label."""

    def __len__(self) -> int:
        """Return the number of samples N."""

    def describe(self) -> str:
        """Return one line for reports, e.g. "image folder calib (5,000 images of 10 classes)"."""

    def recipe(self) -> dict[str, object] | None:
        """Return the resolved preprocessing as JSON-able values; None if samples are used as stored."""

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield the samples `rows` (default: all) in that order, `size` at a time.

        The last batch may be shorter, and so may one before an image of another size.

        Raises IndexError: a row is not a sample.
        """

    def digest(self) -> str:
        """Return SHA-256 (hex) of the contents, independent of where they are stored."""


def require_samples(source: Source, bins: int, folds: int | None = None) -> None:
    """Refuse fewer samples than the ECE has bins: some bins would be empty whatever the model says.

    `folds`: what one of so many folds leaves has to fill the bins too; None without cross-validation.
    """
    if bins < 1:
        raise UsageError(f"bins must be at least 1, got {bins}")
    # what has no weight fills no bin
    n_samples = int(np.count_nonzero(source.sample_info.get("weight", np.ones(len(source)))))
    held_out = 0
    if folds is not None:
        held_out = math.ceil(n_samples / folds)
    n_samples -= held_out
    require_groups(source, 2)
    owners = getattr(source, "owners", None)
    if owners is not None and len(owners) < _MIN_OWNERS:
        raise DataError(
            f"{source.describe()}: {len(owners)} samples with labels, fewer than {_MIN_OWNERS}; positions of one "
            "sample are not independent, so folds and intervals need that many samples; add more"
        )
    if n_samples < bins:
        rest = ""
        if held_out:
            rest = f" outside a fold of {held_out}"
        raise DataError(
            f"{source.describe()}: {n_samples} samples{rest}, fewer than the {bins} bins of the ECE; "
            "give more samples, or fewer --bins"
        )


def require_groups(source: Source, least: int) -> None:
    """Refuse fewer groups of samples than there have to be; nothing where samples come in none."""
    count = len(np.unique(source.sample_info.get("group", np.arange(least))))
    if count < least:
        raise DataError(
            f"{source.describe()}: expected at least {least} groups of samples, found {count}; add samples of more "
            "groups, and check the group column"
        )


def group_notes(source: Source) -> tuple[str, ...]:
    """Return a note where intervals may be too narrow: with few groups, or weights that make few samples count."""
    weights = source.sample_info.get("weight", np.ones(_MANY_GROUPS))
    worth = int(np.sum(weights) ** 2 / np.sum(weights**2))
    if worth < _MANY_GROUPS:
        return (f"{source.describe()}: by their weights the samples are worth {worth}: intervals may be too narrow",)
    groups = source.sample_info.get("group")
    if groups is None:
        return ()
    count = len(np.unique(groups))
    if count >= _MANY_GROUPS:
        return ()
    text = f"{source.describe()}: {count} groups are few: intervals are of groups"
    if count < MIN_GROUPS:
        return (f"{text}, and no difference is called significant below {MIN_GROUPS}",)
    return (f"{text}, and may be too narrow below {_MANY_GROUPS}",)


def clusters_of(source: Source) -> IntArray | None:
    """Return which rows depend on one another, (R,): the number of each row's group, or else of its sample.

    None if all rows are independent; independent rows with weights are numbered one by one.
    """
    weighted = source_weights(source) is not None
    groups = source.sample_info.get("group")
    if groups is not None:
        _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
        if len(first) == len(groups) and not weighted:
            return None
        # numbered as they come: what they are called decides nothing
        return np.argsort(np.argsort(first))[numbers].astype(np.int64)
    clusters: IntArray | None = getattr(source, "clusters", None)
    if clusters is None and weighted:
        return np.arange(len(source))
    return clusters


def source_weights(source: Source) -> npt.NDArray[np.float64] | None:
    """Return the weight of each row, (R,) with a mean of 1; None if all count the same."""
    weights = source.sample_info.get("weight")
    if weights is None or np.all(weights == weights[0]):
        return None
    scaled: npt.NDArray[np.float64] = weights / np.mean(weights)
    return scaled


def sample_labels(source: Source) -> IntArray:
    """Return one label per sample: the class, or a group number equal for samples with equal labels."""
    labels: IntArray = getattr(source, "sample_labels", source.labels)
    return labels


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Write the shape of an input with N for the batch axis and ? for other free axes.

    >>> shape_text((None, 3, 224, None))
    '(N, 3, 224, ?)'
    """
    if not shape:
        return "()"  # a scalar: there is no batch axis to call N
    axes = ["?" if length is None else str(length) for length in shape[1:]]
    return f"({', '.join(['N', *axes])})"


def split_rows(n_samples: int, size: int, rows: IntArray | None) -> list[IntArray]:
    """Cut `rows` (default: 0..n_samples-1) into runs of `size`, in order; the last may be shorter.

    Rows follow NumPy's rules for an index array (negative ones count from the end).

    Raises IndexError: `rows` is not one axis of integers within the samples.
    """
    if size < 1:
        raise UsageError(f"the batch size must be at least 1, got {size}")
    picked: AnyArray = np.arange(n_samples) if rows is None else np.asarray(rows)
    if picked.dtype.kind not in "iu":  # a mask
        picked = np.arange(n_samples)[picked]
    if picked.ndim != 1:
        raise IndexError(f"rows must have one axis, got shape {picked.shape}")
    if picked.size and not -n_samples <= int(picked.min()) <= int(picked.max()) < n_samples:
        raise IndexError(f"rows must be samples, 0 to {n_samples - 1}, got {picked.min()} to {picked.max()}")
    indices: IntArray = picked.astype(np.int64)
    indices[indices < 0] += n_samples
    return [indices[start : start + size] for start in range(0, len(indices), size)]


@dataclass(frozen=True, eq=False)
class SourceView:
    """Base of sources that present another source: what they do not override comes from that one."""

    source: Source  # the samples

    def recipe(self) -> dict[str, object] | None:
        return self.source.recipe()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.source.notes

    @property
    def sample_info(self) -> Mapping[str, AnyArray]:
        return self.source.sample_info

    @property
    def sample_form(self) -> str:
        return self.source.sample_form

    def sample_digests(self) -> npt.NDArray[np.uint64]:
        return self.source.sample_digests()

    def digest(self) -> str:
        return self.source.digest()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        return self.source.batches(size, rows)


@dataclass(frozen=True, eq=False)
class Part(SourceView):
    """The samples `rows` of a source, in that order; the laws of `Source` hold."""

    rows: IntArray  # (M,) of its samples
    purpose: str  # what they are for, for reports
    digests: npt.NDArray[np.uint64] = field(repr=False)  # of all samples of the source, (N,); read once for all parts

    @property
    def labels(self) -> IntArray:
        """Class indices (M,)."""
        return self.source.labels[self.rows]

    @property
    def sample_labels(self) -> IntArray:
        """One label a sample, (M,): a group number where samples have several, equal for equal ones."""
        return sample_labels(self.source)[self.rows]

    @property
    def sample_info(self) -> dict[str, AnyArray]:
        return {role: values[self.rows] for role, values in self.source.sample_info.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> str:
        return f"{self.source.describe()}, of which {len(self.rows):,} {self.purpose}"

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        indices = self.rows if rows is None else self.rows[rows]
        return self.source.batches(size, indices)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the digest of the source and the row numbers."""
        source_digest = self.source.digest().encode()
        return hashlib.sha256(source_digest + self.rows.astype(">i8").tobytes()).hexdigest()

    def sample_digests(self) -> npt.NDArray[np.uint64]:
        return self.digests[self.rows]


class WeightedSample(Part):
    """Samples that were drawn by their weights: they all count the same."""

    @property
    def sample_info(self) -> dict[str, AnyArray]:
        """What belongs to each sample beside inputs and label, but for its weight."""
        return {role: values for role, values in super().sample_info.items() if role != "weight"}


def rows_by_weight(source: Source, seed: int = 0) -> IntArray | None:
    """Return samples that come as the population does, indices: each stays with a chance in proportion to its weight.

    Thresholds on independent samples of one distribution keep their promises as they are, and measures of decisions are
    those of the population (von Neumann 1951). None where all samples count the same.
    """
    weights = source.sample_info.get("weight")
    if weights is None or np.all(weights == weights[0]):
        return None
    return np.flatnonzero(np.random.default_rng(seed).random(len(weights)) * np.max(weights) < weights)


def drawn_by_weight(source: Source, seed: int = 0) -> Source:
    """Return the samples of `rows_by_weight`; those of the source where all count the same."""
    rows = rows_by_weight(source, seed)
    if rows is None:
        return source
    return WeightedSample(source, rows, "drawn by their weights", source.sample_digests())


def halves(source: Source, seed: int, purposes: tuple[str, str], share: float = 0.5) -> tuple[Part, Part]:
    """Split samples at random into two parts, `share` of them in the first; a group, or copies, stay together."""
    digests = source.sample_digests()
    _, group = np.unique(source.sample_info.get("group", digests), return_inverse=True)
    # a group's place in a random order is that of all its samples
    place = np.random.default_rng(seed).permutation(int(group.max()) + 1)[group]
    middle = np.sort(place)[int((len(place) - 1) * share)]
    first = place <= middle
    if first.all():
        raise DataError(
            f"{source.describe()}: cannot be split into two parts: all samples are equal, or belong to one group"
        )
    rows = (np.flatnonzero(first), np.flatnonzero(~first))
    one, two = (Part(source, part_rows, purpose, digests) for part_rows, purpose in zip(rows, purposes, strict=True))
    return one, two


NO_LABELS: npt.NDArray[Any] = np.zeros(0, np.int64)
"""Given as `labels`, it opens samples without reading their labels: each gets -1. It is compared by identity."""
NO_LABELS.flags.writeable = False


def classes_text(labels: npt.NDArray[np.int64]) -> str:
    """Say behind a number of samples how many classes they have.

    >>> classes_text(np.array([0, 4, 4])), classes_text(np.array([-1, -1]))
    (' of 2 classes', ', without labels')
    """
    if len(labels) and labels[0] < 0:
        return ", without labels"
    return f" of {len(np.unique(labels)):,} classes"
