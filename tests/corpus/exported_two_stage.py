"""Heads of two stages by PyTorch's exporters: a cosine of features and class vectors, or a distance from prototypes.

The truth is the class vectors as the product applies them: normalised where the graph normalises them first. Squared
distances that are written as 2 x @ P.T - |P|^2 - |x|^2 are a linear layer with P; other distances have no class
vectors. `python -m tests.corpus two-stage` counts them.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tests.corpus.case import Case, Library, normal_feeds
from tests.corpus.exported_torch import CLASSES, FEATURES, Source, dynamo_of, legacy_of, network

torch = Library("torch")

Array = NDArray[Any]

_SCALE = 16.0


def _unit(rows: Any) -> Any:
    return torch.nn.functional.normalize(rows, dim=1)


def _divided(rows: Any) -> Any:
    return rows / rows.norm(dim=-1, keepdim=True)


def _normface(h: Any, w: Any) -> Any:
    return _SCALE * torch.nn.functional.linear(_unit(h), _unit(w))


def _clip(h: Any, w: Any) -> Any:
    return _SCALE * _divided(h) @ _divided(w).t()


def _lengths_behind(h: Any, w: Any) -> Any:
    return _SCALE * (h @ w.t()) / (h.norm(dim=1, keepdim=True) * w.norm(dim=1))


def _similarity(h: Any, w: Any) -> Any:
    return _SCALE * torch.cosine_similarity(h[:, None], w[None], dim=-1)


def _squares(h: Any, w: Any) -> Any:
    return ((h[:, None] - w[None]) ** 2).sum(-1)


def _expanded(h: Any, w: Any) -> Any:
    return (h**2).sum(1, keepdim=True) - 2 * h @ w.t() + (w**2).sum(1)


def _expanded_last(h: Any, w: Any) -> Any:
    return 2 * h @ w.t() - (w**2).sum(1) - (h**2).sum(1, keepdim=True)


def _norm(h: Any, w: Any) -> Any:
    return -torch.linalg.norm(h[:, None] - w[None], dim=-1)


def _cdist(h: Any, w: Any) -> Any:
    return -torch.cdist(h, w)


# name -> (scores of features and stored rows, what becomes of the rows; None where there is no layer, reason)
_FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any] | None, str]] = {
    "cosine": (_normface, _unit, ""),
    "cosine-clip": (_clip, _unit, ""),
    "cosine-softmax": (lambda h, w: _normface(h, w).softmax(-1), _unit, ""),
    "cosine-lengths-behind": (_lengths_behind, lambda w: w, ""),
    "cosine-similarity": (_similarity, lambda w: w, ""),
    "squares-softmax": (lambda h, w: (-_squares(h, w)).softmax(-1), None, "Pow is neither"),
    "norm": (_norm, None, "ReduceL2 is neither"),
    "expanded": (lambda h, w: -_expanded(h, w), lambda w: w, ""),
    "expanded-last": (_expanded_last, lambda w: w, ""),
    "cdist": (_cdist, None, "is neither a linear layer"),
}

# The newer exporter repeats the rows for each sample, and takes seconds a model: a few of them.
_DYNAMO = {"cosine-similarity": "no constant operand"}
_BY_DYNAMO = ("cosine-clip", "cosine-softmax", "cosine-similarity", "squares-softmax", "norm", "expanded")


@cache
def _source(name: str) -> Source:
    scores, applied, _ = _FORMS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sorted(_FORMS).index(name))
        body, rows = torch.nn.Linear(12, FEATURES), torch.nn.Parameter(torch.randn(CLASSES, FEATURES))
        x = torch.randn(3, 12)
    net = network(lambda net, x: scores(torch.relu(net.body(x)), net.rows), body=body, rows=rows)
    weight = None if applied is None else applied(rows.detach()).numpy().copy()
    return Source(net, x, weight)


def _case(exporter: str, name: str, write: Callable[[Source, Path], Path]) -> Case:
    _, applied, reason = _FORMS[name]
    if exporter == "dynamo" and name in _DYNAMO:
        applied = None
        reason = _DYNAMO[name]
    return Case(
        name=f"two-stage/{exporter}/{name}",
        route="two-stage",
        build=lambda folder: write(_source(name), folder),
        weight=None if applied is None else lambda: _source(name).weight,
        reason=reason,
        feeds=normal_feeds("x", 12),
        needs=("torch", "onnxscript") if exporter == "dynamo" else ("torch",),
    )


CASES: tuple[Case, ...] = (
    *(_case("legacy", name, legacy_of) for name in _FORMS),
    *(_case("dynamo", name, dynamo_of) for name in _BY_DYNAMO),
)
