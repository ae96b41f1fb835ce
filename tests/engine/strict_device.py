"""A stand-in for a CUDA device: tensors that refuse what tensors there refuse, on a machine that has none.

A plain tensor of torch turns into an array by itself and mixes with one, so that code which forgets to move one would
pass. `Strict.put` gives tensors that do neither, and what is computed from them does not.
"""

from typing import Any

import array_api_compat
import numpy as np
import pytest

pytest.importorskip("torch")  # doctests are looked for in every module
import array_api_compat.torch as namespace
import torch

from tna_onnx.engine.placement import OnDevice

_NO_ARRAY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)
_MADE_ON_A_DEVICE = ("asarray", "zeros", "ones", "empty", "full", "arange", "eye", "linspace")


class Strict(torch.Tensor):
    """A tensor that is not turned into an array, and not mixed with arrays or tensors of the host."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        values = [*_leaves(args), *_leaves(kwargs or {})]
        if name in ("numpy", "__array__"):
            raise TypeError(_NO_ARRAY)
        if name == "cpu" or (name == "to" and any(str(value) == "cpu" for value in values[1:])):
            return args[0].detach().as_subclass(torch.Tensor)
        if name not in ("__getitem__", "__setitem__", "__get__"):
            for value in values:
                if isinstance(value, np.ndarray) and value.ndim:
                    raise TypeError(f"{name}: an array beside a tensor of a device")
                if type(value) is torch.Tensor and value.ndim:
                    raise RuntimeError(f"{name}: expected all tensors to be on the same device, cuda:0 and cpu")
        return super().__torch_function__(function, types, args, kwargs or {})

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(_NO_ARRAY)


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = list(values.values())
    if not isinstance(values, (list, tuple)):
        return [values]
    return [leaf for value in values for leaf in _leaves(value)]


class OnStrictDevice(OnDevice):
    """Arrays on the stand-in."""

    def __init__(self) -> None:
        super().__init__(torch, "cpu")
        self.name = "torch on cuda:0"
        self.count = 0

    def put(self, array: Any) -> Any:
        """Copy an array to the stand-in."""
        self.count += 1
        return torch.from_numpy(np.array(array)).as_subclass(Strict)


class _Name(str):
    """What `array_api_compat.device` says of a strict tensor."""

    __slots__ = ()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> OnStrictDevice:
    """Return a placement whose device can be named: what is made there is strict, too."""
    for name in _MADE_ON_A_DEVICE:
        if hasattr(namespace, name):
            monkeypatch.setattr(namespace, name, _making(getattr(namespace, name)))
    device, to_device = array_api_compat.device, array_api_compat.to_device
    monkeypatch.setattr(array_api_compat, "device", lambda x: _Name("cuda:0") if isinstance(x, Strict) else device(x))

    def moved(x: Any, target: Any, **words: Any) -> Any:
        if isinstance(x, Strict) and target == "cpu":
            return x.detach().as_subclass(torch.Tensor)
        return to_device(x, target, **words)

    monkeypatch.setattr(array_api_compat, "to_device", moved)
    return OnStrictDevice()


def _making(function: Any) -> Any:
    def made(*values: Any, device: Any = None, **words: Any) -> Any:
        if isinstance(device, _Name):
            return function(*values, **words).as_subclass(Strict)
        return function(*values, device=device, **words)

    return made
