"""The word list of map formulas, run on NumPy or torch arrays (`ArrayOps`), and threads of linear algebra.

The graph layer writes the same words as ONNX nodes, so what is scored and what is shipped cannot drift. Every value is
2-D, (N, C) or (N, 1), or a constant of shape [], [C] or a matrix.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self

import array_api_compat
import numpy as np
from numpy.typing import NDArray

# NumPy 2.1 is an array API by itself; the one made of earlier versions loads all of NumPy, compilers of Fortran too.
_NUMPY = np if hasattr(np, "unstack") else array_api_compat.array_namespace(np.zeros(0))

_BLOCK = 2**17
"""Logits in a row block: 512 KB of float32, so that what is computed from them stays in a core's cache."""

_PARTS, _PART = 4, 4  # of a sum, which threads share; blocks of a part, at least: 2 ms, ten times what a thread takes

# Columns up to which rows are reduced column by column: 30 times faster at 10, equal at 100.
_NARROW = 64


class Ops(Protocol):
    """The words. `Value` is an array, or the name of a tensor in a graph."""

    @property
    def tiny(self) -> float:
        """Smallest normal number of the working dtype: the floor below which no probability falls."""

    def const(self, value: Any) -> Any:
        """Return a constant of shape [], [C] or a matrix, in the working dtype."""

    def in_float(self, value: Any) -> Any:
        """Return a constant matrix that has to stay as it is where others quantise the file later."""

    def add(self, a: Any, b: Any) -> Any:
        """Return a + b."""

    def mul(self, a: Any, b: Any) -> Any:
        """Return a * b."""

    def div(self, a: Any, b: Any) -> Any:
        """Return a / b."""

    def matmul(self, a: Any, b: Any) -> Any:
        """Return the matrix product of a, (N, n), and a constant b, (n, m)."""

    def log(self, a: Any) -> Any:
        """Return the natural logarithm of a."""

    def clip(self, a: Any, low: float, high: float) -> Any:
        """Return a, cut to [low, high]."""

    def softmax(self, a: Any) -> Any:
        """Return the softmax of a over classes (axis 1)."""

    def mean(self, a: Any) -> Any:
        """Return the mean of a over axis 1, (N, 1)."""

    def min(self, a: Any) -> Any:
        """Return the smallest value of a over axis 1, (N, 1)."""

    def sum_square(self, a: Any) -> Any:
        """Return the sum of squares of a over axis 1, (N, 1)."""


class ArrayOps:
    """The words on NumPy or torch arrays, in the dtype and on the device of `like`.

    >>> ops = ArrayOps(np.zeros((1, 2), np.float32))
    >>> ops.softmax(np.zeros((1, 2), np.float32)).tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, like: Any) -> None:
        self._xp = namespace(like)
        self._dtype = like.dtype
        self._device = _device(like)

    @property
    def tiny(self) -> float:
        return least_probability(self._xp.finfo(self._dtype).smallest_normal)

    def const(self, value: Any) -> Any:
        return self._xp.asarray(np.asarray(value, np.float64), dtype=self._dtype, device=self._device)

    in_float = const
    add = staticmethod(operator.add)
    mul = staticmethod(operator.mul)
    div = staticmethod(operator.truediv)
    matmul = staticmethod(operator.matmul)

    def log(self, a: Any) -> Any:
        return self._xp.log(a)

    def clip(self, a: Any, low: float, high: float) -> Any:
        return self._xp.clip(a, low, high)

    def softmax(self, a: Any) -> Any:
        # the largest exponential is 1: none overflows
        weights = self._xp.exp(a - row_max(a))
        return weights / row_sum(weights)

    def mean(self, a: Any) -> Any:
        return row_sum(a) / a.shape[1]

    def min(self, a: Any) -> Any:
        return -row_max(-a)

    def sum_square(self, a: Any) -> Any:
        return row_sum(a * a)


class ShapeOps:
    """The words on shapes: a few bytes of a file can ask for arrays of any size, and here none is made.

    >>> ShapeOps(99).matmul((1, 3), (3, 7))
    (1, 7)

    Args:
        limit: numbers in all constants.
    """

    tiny = 1.0

    def __init__(self, limit: int) -> None:
        self._left = limit

    def const(self, value: Any) -> Any:
        self._left -= np.size(value)
        if self._left < 0:
            raise ValueError("more constants than the file can hold")
        return np.shape(value)

    def add(self, a: Any, b: Any) -> Any:
        return np.broadcast_shapes(a, b)

    def matmul(self, a: Any, b: Any) -> Any:
        if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
            raise ValueError(f"no product of matrices of the shapes {a} and {b}")
        return (a[0], b[1])

    def log(self, a: Any) -> Any:
        return a

    def clip(self, a: Any, low: float, high: float) -> Any:  # noqa: ARG002 - one signature for all
        return a

    def mean(self, a: Any) -> Any:
        return (a[0], 1)

    in_float = const
    mul = div = add
    softmax = log
    min = sum_square = mean


def least_probability(smallest_normal: Any) -> float:
    """Return the floor of probabilities in a dtype; of float64, in which files of float32 are checked, float32's."""
    return max(float(smallest_normal), float(np.finfo(np.float32).tiny))


def blocks(logits: Any) -> list[slice]:
    """Return row slices of (N, C) logits, each small enough for a cache; one slice for arrays that are not NumPy's."""
    n, classes = logits.shape
    if not isinstance(logits, np.ndarray):
        return [slice(0, max(1, n))]
    _keep_freed_memory()
    rows = max(1, _BLOCK // classes)
    return [slice(k, k + rows) for k in range(0, max(1, n), rows)]


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc see a large array freed: 16 MB, which nothing touches.

    Until then it gives the memory of large temporaries back to the system after each use, and every page of the next
    one faults: four times the work of a block.
    """
    np.empty(2**21)


def rows_of(values: Any, rows: Any) -> Any:
    """Return some rows of an array of any namespace; of what is missing, None."""
    return None if values is None else values[rows]


@dataclass(frozen=True)
class Blocked:
    """The sum of of(logits, *aligned) over row blocks; None among the aligned arrays stays None.

    Of many logits, `of` runs in several threads, in a block of `one_thread`. It can be pickled where `of` can.

    >>> Blocked(lambda logits: logits.sum(axis=0))(np.ones((300_000, 2))).tolist()
    [300000.0, 300000.0]
    """

    of: Callable[..., Any]

    def __call__(self, logits: Any, *aligned: Any) -> Any:
        def total(part: list[slice]) -> Any:
            sums = (self.of(by_column(logits[rows]), *(rows_of(x, rows) for x in aligned)) for rows in part)
            return functools.reduce(operator.add, sums)

        cuts = blocks(logits)
        # the parts follow from the sizes alone, as the last bits of the sum depend on them
        length = max(_PART, math.ceil(len(cuts) / _PARTS))
        parts = [cuts[k : k + length] for k in range(0, len(cuts), length)]
        threads = max((threads for *_, threads in _HELD), default=1)
        if threads == 1 or len(parts) == 1:
            return functools.reduce(operator.add, map(total, parts))
        with ThreadPoolExecutor(threads) as pool:
            return functools.reduce(operator.add, pool.map(total, parts))


def namespace(array: Any) -> Any:
    """Return the array API of an array; of NumPy's, without a search."""
    if isinstance(array, np.ndarray):
        return _NUMPY
    return array_api_compat.array_namespace(array)


def _device(array: Any) -> Any:
    """Return where an array lies; None for NumPy's, without a search."""
    if isinstance(array, np.ndarray):
        return None
    return array_api_compat.device(array)


def row_max(values: Any) -> Any:
    """Return the largest value of each row, (N, 1), of (N, C) values of any namespace.

    >>> row_max(np.array([[1.0, 3.0], [5.0, 2.0]])).tolist()
    [[3.0], [5.0]]
    """
    if is_narrow(values):
        return np.maximum.reduce(np.ascontiguousarray(values.T), axis=0)[:, None]
    return namespace(values).max(values, axis=1, keepdims=True)


def row_sum(values: Any, *, double: bool = False) -> Any:
    """Return the sum of each row, (N, 1), of (N, C) values of any namespace; in float64 if `double`.

    >>> row_sum(np.array([[1.0, 3.0], [5.0, 2.0]])).tolist()
    [[4.0], [7.0]]
    """
    xp = namespace(values)
    dtype = xp.float64 if double else values.dtype
    if is_narrow(values):
        return np.add.reduce(np.ascontiguousarray(values.T), axis=0, dtype=dtype)[:, None]
    return xp.sum(values, axis=1, keepdims=True, dtype=dtype)


def is_narrow(values: Any) -> bool:
    """Whether NumPy is far slower along the rows, which it takes one by one, than from column to column."""
    return isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] <= _NARROW


def row_dot(a: Any, b: Any) -> Any:
    """Return the products of the rows of two (N, C) arrays of any namespace, (N,)."""
    if is_narrow(a):
        return row_sum(a * b)[:, 0]
    return namespace(a).vecdot(a, b)


def by_column(values: Any) -> Any:
    """Return (N, C) values of few classes column after column in memory, where NumPy passes over them fastest."""
    if is_narrow(values):
        return np.asfortranarray(values)
    return values


def own_column(values: Any, labels: Any) -> Any:
    """Return the (N, 1) values of each row's label, of (N, C) values and (N,) integer labels, on the device of these.

    >>> own_column(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 1])).tolist()
    [[0.8], [0.7]]
    """
    xp = namespace(values)
    labels = plain_labels(labels)
    if isinstance(labels, SoftLabels):
        return xp.sum(values * label_shares(labels, values), axis=1, keepdims=True)
    index = xp.asarray(labels, dtype=xp.int64, device=_device(values))
    return xp.take_along_axis(values, index[:, None], axis=1)


@dataclass(frozen=True, eq=False)
class _LabelColumns:
    """Labels of samples, and what else is known of each; the fields are aligned arrays."""

    labels: NDArray[np.int64]  # (N,) int64; (N, C) of several labels a sample

    @property
    def ndim(self) -> int:
        """Number of axes of the labels."""
        return self.labels.ndim

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Self:
        """Return some samples."""
        return type(self)(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class WeightedLabels(_LabelColumns):
    """Labels of samples that do not all count the same; what fits to them multiplies by `weigh`."""

    weights: NDArray[np.float64]  # (N,) float64


@dataclass(frozen=True, eq=False)
class SoftLabels(_LabelColumns):
    """Probabilities of the classes in place of one label a sample, as a teacher gives them, and a label drawn of them.

    What knows labels alone reads it as an array, and gets those that were drawn.
    """

    shares: NDArray[np.float32]  # (N, C) float32; each row adds up to 1

    @classmethod
    def drawn(cls, probabilities: NDArray[Any], seed: int) -> SoftLabels:
        """Draw a label for each row of (N, C) probabilities.

        >>> SoftLabels.drawn(np.array([[0.0, 1.0], [1.0, 0.0]]), 0).labels.tolist()
        [1, 0]
        """
        p = np.asarray(probabilities, np.float64)
        p = p / p.sum(axis=1, keepdims=True)
        below = np.cumsum(p, axis=1)
        below[:, -1] = 1  # whatever rounding has left
        labels = np.argmax(below > np.random.default_rng(seed).random((len(p), 1)), axis=1)
        return cls(labels, p.astype(np.float32))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the labels that were drawn."""
        return np.array(self.labels, dtype)


def plain_labels(labels: Any) -> Any:
    """Return labels without their weights."""
    if isinstance(labels, WeightedLabels):
        return labels.labels
    return labels


def weights_of(labels: Any) -> NDArray[np.float64] | None:
    """Return the weights of labels, (N,); None where all samples count the same."""
    if isinstance(labels, WeightedLabels):
        return labels.weights
    return None


def weigh(values: Any, labels: Any) -> Any:
    """Return values times the weights of their samples, (B,) or (B, ...), where labels have weights."""
    if not isinstance(labels, WeightedLabels):
        return values
    xp = namespace(values)
    weights = xp.asarray(labels.weights, dtype=values.dtype, device=_device(values))
    return values * xp.reshape(weights, (-1, *[1] * (values.ndim - 1)))


def total_weight(labels: Any) -> float:
    """Return the sum of the weights of samples; their number where all count the same."""
    if isinstance(labels, WeightedLabels):
        return float(np.sum(labels.weights))
    return len(labels)


def joined_labels(parts: Sequence[Any]) -> Any:
    """Return the labels of several sets of samples, one after the other."""
    if isinstance(parts[0], _LabelColumns):
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return type(parts[0])(*map(np.concatenate, columns))
    return np.concatenate(parts)


def label_shares(labels: Any, values: Any) -> Any:
    """Return 1 for each row's label and 0 for other classes, or the shares of soft labels, like (N, C) values."""
    xp = namespace(values)
    device = _device(values)
    if isinstance(labels, SoftLabels):
        return xp.asarray(labels.shares, dtype=values.dtype, device=device)
    classes = xp.arange(values.shape[1], device=device)
    index = xp.asarray(plain_labels(labels), device=device)
    is_label = (classes[:, None] == index).T if is_narrow(values) else index[:, None] == classes
    return xp.astype(is_label, values.dtype)


def class_counts(labels: Any, classes: int) -> NDArray[Any]:
    """Return how many samples have each class as label, (C,); of soft labels and weights, their sums."""
    if isinstance(labels, SoftLabels):
        counts: NDArray[np.float64] = labels.shares.sum(axis=0, dtype=np.float64)
        return counts
    if isinstance(labels, WeightedLabels):
        return np.bincount(labels.labels, labels.weights, classes)
    return np.bincount(labels, minlength=classes)


def to_host(array: Any) -> NDArray[Any]:
    """Bring an array of any namespace to NumPy."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array_api_compat.to_device(array, "cpu"))


def sigmoid(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (N, C) of the logits (N, C) of labels, each by itself, in float64."""
    values = np.asarray(logits, np.float64)
    # the exponential of a negative number: none overflows
    small = np.exp(-np.abs(values))
    probabilities: NDArray[np.float64] = np.where(values >= 0, 1, small) / (1 + small)
    return probabilities


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (N, C) of logits (N, C), in float64."""
    values = np.asarray(logits, np.float64)
    probabilities: NDArray[np.float64] = ArrayOps(values).softmax(values)
    return probabilities


LARGE = 2**28
"""Multiplications of a product from which other threads are worth waking: 7 ms of one core.

A waiting thread of OpenBLAS spins for about 25 ms, which costs more than it brings between small products. The number
of threads follows from the size of the product alone, because the last bits of a product depend on it.
"""

# The number of threads is the whole process's: the first block that is entered sets it, the last one sets it back.
_LOCK = threading.Lock()
_ENTERED = [0]
# libraries, their threads before, and those for large products
_HELD: list[tuple[Any, int, int]] = []


@contextlib.contextmanager
def one_thread(cores: int) -> Iterator[None]:
    """Give linear algebra of this process one thread for a block; `several_threads` gives large products more in it."""
    with _LOCK:
        if not _ENTERED[0]:
            for library in _libraries():
                before = library.get_num_threads()
                _HELD.append((library, before, min(before, max(2, cores))))
                library.set_num_threads(1)
        _ENTERED[0] += 1
    try:
        yield
    finally:
        with _LOCK:
            _ENTERED[0] -= 1
            while not _ENTERED[0] and _HELD:
                library, before, _ = _HELD.pop()
                library.set_num_threads(before)


@contextlib.contextmanager
def several_threads(*shape: int) -> Iterator[None]:
    """Give a product in a block of `one_thread` the cores, if it is large; elsewhere it has them already.

    `shape`: of the product (rows, columns) and the length of its sums: so many multiplications are made.
    """
    if math.prod(shape) < LARGE or not _HELD:
        yield
        return
    for library, _, was_threaded in _HELD:
        library.set_num_threads(was_threaded)
    try:
        yield
    finally:
        for library, _, _ in _HELD:
            library.set_num_threads(1)


def _libraries() -> list[Any]:
    """Return a controller for the threads of each loaded library of linear algebra."""
    import threadpoolctl  # noqa: PLC0415 - only searches need it

    controllers: list[Any] = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return controllers
