"""A session of ONNX Runtime: one model on one device, run batch by batch, with errors in this package's words. Two
batches may run side by side, each on half of the cores: where one waits for a slow thread, the other works.
"""

import ctypes
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, DeviceError, UnsupportedModel, one_line
from tna_onnx.runtime.device import Device

CUDA = "CUDAExecutionProvider"
"""ONNX Runtime's name of the provider for NVIDIA GPUs."""

# Types of the inputs that NumPy arrays can be fed to. ONNX Runtime names two of them as C does, the others as NumPy.
_C_NAMES = {"float": "float32", "double": "float64"}
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
_ELEMENTS = ("float", "float16", "double", *_INTEGERS, "bool")
_DTYPES = {f"tensor({element})": np.dtype(_C_NAMES.get(element, element)) for element in _ELEMENTS}
_TEXT = "tensor(string)"
_DTYPES[_TEXT] = np.dtype(object)

_BFLOAT16 = "tensor(bfloat16)"
_NUMERIC = {*_DTYPES, _BFLOAT16} - {_TEXT}

# A smaller batch is filled up to a fixed one: no network is run on more, and memory for it must be there.
_MAX_FIXED_BATCH = 2**16

# What ONNX Runtime and the CUDA libraries say when they cannot allocate a buffer.
NO_MEMORY = re.compile(
    "failed to allocate memory|smaller than requested bytes|out of memory|bad allocation|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)


# Libraries that ONNX Runtime does without until a node needs one.
_MISSING = re.compile("(cuDNN|cuFFT) is (not available|unavailable)")


class OutOfMemory(DataError):
    """A batch does not fit into the memory of the device."""


@dataclass(frozen=True)
class TensorInfo:
    """A model input: name, shape (None for a dynamic dimension) and NumPy dtype."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class Session:
    """One model on one device.

    Attributes:
        inputs: the tensors that have to be fed.
        provider: the execution provider in use, the first of ONNX Runtime's list.
        fallback: why `auto` did not get a CUDA device that seemed to be available; empty otherwise.
        fixed_batch: the only batch size that the model accepts; None if it accepts any.
        alone: whether it declares any batch size, and runs samples one at a time only.
        device: the CUDA device that was asked for; None on the CPU.
        at_once: batches that it is made to run at a time, from as many threads.
        most_at_once: how many a session could be made to run, by cores and memory; 1 where CUDA was tried.
        remembered: (inputs, outputs) of batches that need not be run again.
    """

    remembered: tuple[tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]], ...] = ()
    most_at_once = 1
    alone = False

    def __init__(
        self,
        session: Any,
        name: str,
        fallback: str = "",
        fixed_batch: int | None = None,
        device: Device | None = None,
        at_once: int = 1,
    ) -> None:
        self._session = session
        self.at_once = at_once
        self._name = name
        self.provider = str(session.get_providers()[0])
        self.fallback = fallback
        self.device = None
        if self.provider == CUDA:
            self.device = device
        self.inputs = tuple(_tensor_info(info, name) for info in session.get_inputs())
        leading = (info.shape[0] for info in self.inputs if info.shape and info.shape[0] is not None)
        self.fixed_batch = fixed_batch or next(leading, None)
        if self.fixed_batch is not None and self.fixed_batch > _MAX_FIXED_BATCH:
            raise UnsupportedModel(
                f"{name}: its inputs take {self.fixed_batch:,} samples at a time, more than {_MAX_FIXED_BATCH:,}; "
                "export it with a dynamic batch"
            )
        self._kinds = {str(info.name): str(info.type) for info in session.get_outputs()}

    @property
    def tf32(self) -> bool:
        """Whether products of float32 may be rounded to TF32."""
        return self.device is not None and self.device.tf32

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(str(output.name) for output in self._session.get_outputs())

    def remember(self, feeds: Mapping[str, NDArray[Any]], results: Mapping[str, NDArray[Any]]) -> None:
        """Keep what a batch gave that was run to check the model: asked for again right after, it is not run again.

        Several batches are kept until the first run that asks for something else.
        """
        self.remembered = (*self.remembered, (feeds, results))

    def run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one batch of any size. A model with a fixed batch gets it in portions of that size, the last one padded.

        Gives one array per output, leading axis N. A sequence of maps gives (N, labels), columns sorted by label.
        `feeds`: input name -> (N, ...) array, or an array without a row per sample, which every portion gets. Raises
        OutOfMemory: the batch is too large.
        """
        remembered = self.remembered
        for known_feeds, results in remembered:
            # by content: a source may give its samples in another order the next time
            same = set(feeds) == set(known_feeds) and all(
                np.array_equal(feeds[name], known_feeds[name]) for name in feeds
            )
            if same and set(outputs) <= set(results):
                self.remembered = tuple(pair for pair in self.remembered if pair[1] is not results)
                return [results[name] for name in outputs]
        # the first batches of a run over all samples, or none
        self.remembered = ()
        return self._compute(outputs, feeds)

    def _compute(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        samples = len(next(iter(feeds.values())))
        fixed_batch = self.fixed_batch  # as it is now: meanwhile another thread may find that it is 1
        try:
            return self._in_portions(outputs, feeds, samples, fixed_batch or samples)
        except OutOfMemory:
            raise
        except DataError as error:
            if fixed_batch or samples == 1:
                raise
            try:  # nodes with a batch of one in them, behind a declared one of any size
                first = self._run_portion(outputs, _portion(feeds, samples, 0, 1), 1)
                if any(array.ndim == 0 or len(array) != 1 for array in first):
                    raise error
                results = self._in_portions(outputs, feeds, samples, 1)
            except DataError:
                raise error from None
            self.fixed_batch = 1
            self.alone = True
            return results

    def _in_portions(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], samples: int, size: int
    ) -> list[NDArray[Any]]:
        portions = []
        for start in range(0, samples, size):
            count = min(size, samples - start)
            results = self._run_portion(outputs, _portion(feeds, samples, start, size), count)
            if count < size:  # the rest belongs to the padding
                results = [array[:count] for array in results]
            portions.append(results)
        if len(portions) == 1:
            return portions[0]
        return [np.concatenate(parts) for parts in zip(*portions, strict=True)]

    def _run_portion(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], count: int) -> list[NDArray[Any]]:
        """Run ONNX Runtime once; `count` is the number of samples in messages."""
        # scores that are the graph's own input need not be computed, and ONNX Runtime does not give them
        computed = list(dict.fromkeys(name for name in outputs if name in self._kinds or name not in feeds))
        results = []
        try:
            if computed:
                results = self._run_runtime(computed, feeds)
        except Exception as error:  # onnxruntime raises its own classes, which it does not export as a family
            # Errors of a binding are plain RuntimeErrors.
            from_runtime = is_onnxruntime_error(error) or type(error) is RuntimeError
            message = one_line(error)
            if isinstance(error, MemoryError) or (from_runtime and NO_MEMORY.search(str(error))):
                raise OutOfMemory(
                    f"{self._name}: no memory for a batch of {count} on {self.provider}; choose a smaller --batch-size "
                    f"({message})"
                ) from error
            if not from_runtime:
                raise
            missing = _MISSING.search(str(error))
            if missing is not None:
                raise DeviceError(
                    f"{self._name}: {missing[0]}, and a node needs it; `pip install 'tna-onnx[gpu]'` brings it, or use "
                    f"--device cpu ({message})"
                ) from error
            raise DataError(f"{self._name}: ONNX Runtime could not run a batch of {count}: {message}") from error
        values = {**feeds, **{name: _as_array(result) for name, result in zip(computed, results, strict=True)}}
        return [values[name] for name in outputs]

    def _run_runtime(self, outputs: list[str], feeds: Mapping[str, NDArray[Any]]) -> Any:
        """Run; with a binding where outputs are bfloat16: only that gives numbers which NumPy has no type for."""
        kinds = [self._kinds.get(name, "") for name in outputs]
        # a binding holds no sequence of maps, and ONNX Runtime ends the process over one of text
        numeric = all(kind in _NUMERIC for kind in kinds) and all(a.dtype.kind in "biuf" for a in feeds.values())
        if _BFLOAT16 not in kinds or not numeric:
            return self._session.run(outputs, feeds)
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.asarray(array, order="C"))
        for name in outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        return [_values(value) for value in binding.get_outputs()]


def is_onnxruntime_error(error: Exception) -> bool:
    """Return whether an exception is of a class that ONNX Runtime defines."""
    return type(error).__module__.partition(".")[0] == "onnxruntime"


def _values(value: Any) -> NDArray[Any]:
    """Return a tensor on the host as an array; bfloat16 as float32."""
    if value.data_type() != _BFLOAT16:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    # ONNX Runtime makes no array of these, but says where they lie: the upper halves of float32
    address = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_uint16))
    upper = np.ctypeslib.as_array(address, shape).astype(np.uint32)
    return (upper << 16).view(np.float32)


def _tensor_info(info: Any, name: str) -> TensorInfo:
    if info.type not in _DTYPES:
        raise UnsupportedModel(f"{name}: input '{info.name}' is {info.type}; expected {', '.join(_DTYPES)}")
    shape = tuple(d if isinstance(d, int) else None for d in info.shape or ())
    return TensorInfo(str(info.name), shape, _DTYPES[info.type])


def _portion(feeds: Mapping[str, NDArray[Any]], samples: int, start: int, size: int) -> dict[str, NDArray[Any]]:
    """Return `size` rows of each array from row `start` on, the last row repeated where too few are left."""
    portion = {}
    for name, array in feeds.items():
        rows = array
        if array.ndim and len(array) == samples:
            rows = array[start : start + size]
            padding = size - len(rows)
            if padding:
                rows = np.concatenate([rows, np.repeat(rows[-1:], padding, axis=0)])
        portion[name] = rows
    return portion


def _as_array(result: Any) -> NDArray[Any]:
    """Return an output as an array; a sequence of maps, as ZipMap gives it, as (N, labels).

    A sequence of arrays (N, C1), (N, C2), ..., one a classifier of scikit-learn, becomes (N, C1 + C2 + ...).
    """
    if isinstance(result, list) and result and isinstance(result[0], dict):
        labels = sorted(result[0])
        return np.array([[row[label] for label in labels] for row in result], np.float32)  # as ZipMap read them
    if isinstance(result, list) and len({array.shape[:-1] for array in result if array.ndim}) == 1:
        return np.concatenate(result, axis=-1)
    return np.asarray(result)


AT_ONCE = 2
"""Batches that are run at a time where there are cores and memory for it; more would only take memory."""

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(of: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[tuple[T, R]]:
    """Yield (item, of(item)) for each item, in order, up to so many computed at a time.

    The first is computed alone: what it finds may decide about the others. The first exception in the order of the
    items is raised, one of the items' own after those of the items before.

    `items`: taken one by one, at most two more than have been yielded and are being computed.

    >>> list(side_by_side(abs, [-1, 2, -3], 2))
    [(-1, 1), (2, 2), (-3, 3)]
    """
    remaining = iter(items)
    for item in remaining:
        yield item, of(item)
        break
    if at_once == 1:
        for item in remaining:
            yield item, of(item)
        return
    pending: deque[tuple[T, Future[R]]] = deque()
    failures: list[Exception] = []
    with ThreadPoolExecutor(at_once, thread_name_prefix="tna-onnx-run") as pool:
        try:
            for item in _until_failure(remaining, failures):
                pending.append((item, pool.submit(of, item)))
                # one more than are computed: a thread that is done finds the next one
                if len(pending) > at_once:
                    yield _oldest(pending)
            while pending:
                yield _oldest(pending)
        finally:
            # the caller stopped, or an item failed: do not begin what nobody will see
            for _, future in pending:
                future.cancel()
    for failure in failures:
        raise failure


def _until_failure(items: Iterator[T], failures: list[Exception]) -> Iterator[T]:
    """Yield items up to an exception, which is noted."""
    try:
        yield from items
    except Exception as failure:  # noqa: BLE001 - raised when it is its turn
        failures.append(failure)


def _oldest(pending: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
    """Wait for the oldest; it stays pending meanwhile, so that an interruption cancels the others."""
    item, future = pending[0]
    result = future.result()
    pending.popleft()
    return item, result
