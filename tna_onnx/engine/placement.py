"""Where the search computes: on the host with NumPy, or on the CUDA device of the session with torch (extra `gpu`).

Rotations are drawn and applied on the host, so candidates have the same weights everywhere.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DeviceError, TnaError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.numerics.ops import LARGE, one_thread, several_threads
from tna_onnx.runtime import Device, allowed_cores

# A device that is full or lost, in the words of torch; errors that tell of wrong calls are ours.
_DEVICE_FAILED = re.compile("out of memory|_ALLOC_FAILED|CUDA unknown error|No CUDA GPUs|NVIDIA driver", re.IGNORECASE)


class Host:
    """Arrays stay where they are."""

    name = "NumPy on the CPU"

    def put(self, array: NDArray[Any]) -> Any:
        return array

    def chunks(self, store: FeatureTable, n_classes: int) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        return store.chunks(n_classes)

    def forget(self) -> None:
        """Do nothing: there is no second copy of the features."""


class OnDevice:
    """Arrays of torch on a device; the features of a store are moved there once, if half of what is free holds them.

    Several stores stay there beside one another while there is room: a part of the samples serves the fits of folds,
    and all of them are scored in between.

    Args:
        torch: the module.
        device: as torch names it.
        memory: bytes of the device that may be taken; None for all that is free.
    """

    def __init__(self, torch: Any, device: str, memory: int | None = None) -> None:
        self._torch = torch
        self._memory = memory
        self._device = torch.device(device)
        self._kept: WeakKeyDictionary[FeatureTable, tuple[int, list[tuple[Any, NDArray[np.int64]]]]] = (
            WeakKeyDictionary()
        )
        self.name = f"torch {torch.__version__} on {device}"

    def put(self, array: NDArray[Any]) -> Any:
        """Copy an array to the device."""
        # a copy: torch warns of arrays that are read-only, as those of mapped files are
        return self._torch.from_numpy(np.array(array)).to(self._device)

    def chunks(self, store: FeatureTable, n_classes: int) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Yield (features, labels) in row blocks, features on the device."""
        cached_for, cached = self._kept.get(store, (0, []))
        if cached_for == n_classes:
            yield from cached
            return
        # blocks of another size go before the new ones come
        self._kept.pop(store, None)
        cached = []
        blocks = ((self.put(features), labels) for features, labels in store.chunks(n_classes))
        if not self._has_room(_bytes_there(store)):
            yield from blocks
            return
        self._kept[store] = (n_classes, list(blocks))
        yield from self._kept[store][1]

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes may be kept; other stores make room if that is enough."""
        # the other half is for logits and what is computed from them
        if size <= self._free() // 2:
            return True
        if size > (self._free() + sum(map(_bytes_there, self._kept))) // 2:
            return False
        self.forget()
        return size <= self._free() // 2

    def _free(self) -> int:
        """Free bytes on the device; no bound where the device is the host."""
        if self._device.type != "cuda":
            return 2**62  # larger than any store
        free = int(self._torch.cuda.mem_get_info(self._device)[0])
        if self._memory is None:
            return free
        return max(0, min(free, self._memory - int(self._torch.cuda.memory_allocated(self._device))))

    def forget(self) -> None:
        """Give the memory of features back, to a session of ONNX Runtime too."""
        self._kept.clear()
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()


Placement = Host | OnDevice


def _bytes_there(store: FeatureTable) -> int:
    """Bytes of a store's features on a device: blocks of float16 are widened before they are moved."""
    features = store.features
    return int(features.size) * max(int(features.itemsize), np.dtype(np.float32).itemsize)


@contextlib.contextmanager
def float32_products(array: Any) -> Iterator[None]:
    """Keep products of float32 arrays in float32 in this block; nothing to do for NumPy.

    On CUDA torch may round them to TF32 (10 bits), which moves a logit by a thousandth of its terms. The switch is the
    whole process's, so what the caller had set comes back afterwards.
    """
    if not type(array).__module__.startswith("torch"):
        yield
        return
    switch = sys.modules["torch"].backends.cuda.matmul
    # from torch 2.9 on there are two switches; reading the old one fails where the caller has set the new one alone
    precision = getattr(switch, "fp32_precision", None)
    try:
        before = switch.allow_tf32
    except RuntimeError:
        before = precision != "tf32"
    switch.allow_tf32 = False  # and the new one with it
    try:
        yield
    finally:
        switch.allow_tf32 = before
        if precision is not None:
            switch.fp32_precision = precision


def placement_of(provider: str, device: Device, multiplications: int) -> Placement:
    """CUDA if the session runs there, torch can use it too, and there is enough to do; the host otherwise.

    `multiplications`: of one pass over the samples. A pass on the device copies a weight there and scores back, and
    before the first one torch starts CUDA: what the host does in milliseconds is done there. No device has measured
    that limit yet.
    """
    # torch may see fewer devices than ONNX Runtime, or none: its build has a CUDA version of its own
    if provider == "CUDAExecutionProvider" and multiplications >= LARGE:
        with contextlib.suppress(ImportError, OSError, RuntimeError):  # torch, or a library of its CUDA, is not there
            import torch  # noqa: PLC0415 - heavy, and optional

            if torch.cuda.is_available() and device.index < torch.cuda.device_count():
                placement = OnDevice(torch, f"cuda:{device.index}", device.memory)
                placement.put(np.ones(1)).sum()  # of a torch that is too old or too new for the device, this fails
                return placement
    return Host()


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Compute on the cores that this process may use; a device that is full or lost is an error of the device."""
    try:
        with one_thread(allowed_cores()):
            yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, TnaError) or not _DEVICE_FAILED.search(reason):
            raise
        raise DeviceError(f"search and fits could not run on the device ({reason}); use --device cpu") from error


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear head: weight (C, n) and bias (C,), which lie where the products are computed."""

    weight: Any
    bias: Any

    def __call__(self, features: Any) -> Any:
        """Return the logits (B, C) of features (B, n)."""
        # TF32 would move a logit by a thousandth of its terms
        with float32_products(features), several_threads(*features.shape, len(self.bias)):
            logits = _widened(features, self.weight.dtype) @ _widened(self.weight, features.dtype).T
        logits += self.bias
        return logits


def _widened(array: Any, dtype: Any) -> Any:
    """Widen an array of torch, which multiplies arrays of one dtype only; NumPy widens by itself."""
    if isinstance(array, np.ndarray) or array.dtype == dtype:
        return array
    return array.to(sys.modules["torch"].promote_types(array.dtype, dtype))
