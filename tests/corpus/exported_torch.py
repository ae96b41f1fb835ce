"""Models written by PyTorch's two exporters: the one that traces (legacy) and the one on torch.export (dynamo).

Every model takes one input, `x`. torch is imported when a case is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from .case import Case, quiet

__all__ = ["CASES", "Source", "legacy", "random_like", "source"]

CLASSES, FEATURES, TOKENS = 5, 16, 4
_LEGACY, _DYNAMO = ("torch",), ("torch", "onnxscript")
_NEWEST = {"torch-legacy": 23, "torch-dynamo": 26}
_SHAPE_REASON = r"\(N, C\)|dimension|shape|axis|rank|per sample|position|token"
_ONE_LOGIT = r"\b(1|one)\b"
_SEVERAL = "choose|--head|--output"


@dataclass(frozen=True, eq=False)
class Source:
    """A model before export.

    Attributes:
        module: torch module in eval mode; `forward(x)`.
        x: example input, a torch tensor of three samples.
        weight: (C, n) class vectors as applied; None where there is no head that could be replaced.
        outputs: names of the results.
    """

    module: Any
    x: Any
    weight: NDArray[np.floating] | None
    outputs: tuple[str, ...] = ("logits",)


def _net(forward: Callable[[Any, Any], Any], **parts: Any) -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Net().eval()


def _array(tensor: Any) -> NDArray[np.floating]:
    value: NDArray[np.floating] = tensor.detach().numpy().copy()
    return value.reshape(value.shape[:2]) if value.ndim > 2 else value


def _vectors(
    after: Callable[[Any], Any] = lambda scores: scores,
    *,
    classes: int = CLASSES,
    bias: bool = True,
    truth: str = "plain",
    dtype: str = "float32",
    outputs: tuple[str, ...] = ("logits",),
) -> Source:
    """MLP 12 -> 16 -> C and `after` its scores. `truth`: plain, binary ([0, w]) or none."""
    import torch

    torch.manual_seed(1)
    body, head = torch.nn.Linear(12, FEATURES), torch.nn.Linear(FEATURES, classes, bias=bias)
    module = _net(lambda net, x: after(net.head(torch.relu(net.body(x)))), body=body, head=head)
    module, x = module.to(getattr(torch, dtype)), torch.randn(3, 12).to(getattr(torch, dtype))
    weight = None if truth == "none" else _array(head.weight)
    if truth == "binary":
        weight = np.concatenate([np.zeros_like(weight), weight])
    return Source(module, x, weight, outputs)


def _custom(scores: Callable[[Any, Any], Any], head: Any, weight: Any, *, outputs: tuple[str, ...] = ("logits",)) -> Source:
    """MLP body 12 -> 16, and `scores(head, features)`; `weight` is a torch tensor or None."""
    import torch

    body, x = torch.nn.Linear(12, FEATURES), torch.randn(3, 12)
    module = _net(lambda net, x: scores(net.head, torch.relu(net.body(x))), body=body, head=head)
    return Source(module, x, None if weight is None else _array(weight), outputs)


def _images(head: Callable[[Any], Any], parts: dict[str, Any], scores: Callable[[Any, Any], Any], weight: Any) -> Source:
    """Conv trunk (N, 3, 8, 8) -> (N, 16, 4, 4), and `scores(net, maps)`."""
    import torch

    trunk = torch.nn.Sequential(
        torch.nn.Conv2d(3, FEATURES, 3, stride=2, padding=1), torch.nn.BatchNorm2d(FEATURES), torch.nn.ReLU()
    )
    module = _net(lambda net, x: scores(net, net.trunk(x)), trunk=trunk, **parts)
    return Source(module, torch.randn(3, 3, 8, 8), None if weight is None else _array(weight))
