"""Functions of JAX and layers of Flax, written by jax2onnx. Kernels are (n, C), as JAX users write them."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, quiet

jax = Library("jax")
jnp = Library("jax.numpy")
nnx = Library("flax.nnx")

Array = NDArray[Any]
_CLASSES = 5
# Without it JAX looks for an accelerator first, and warns.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@cache
def _tensors() -> dict[str, Array]:
    rng = np.random.default_rng(6)
    shapes = {"body": (12, 16), "shift": (16,), "head": (16, _CLASSES), "bias": (_CLASSES,), "one": (16, 1)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _features(x: Any) -> Any:
    return jax.nn.relu(x @ _tensors()["body"] + _tensors()["shift"])


def _logits(x: Any) -> Any:
    return _features(x) @ _tensors()["head"] + _tensors()["bias"]


def _without_bias(x: Any) -> Any:
    return _features(x) @ _tensors()["head"]


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(_logits(x))


def _log_softmax(x: Any) -> Any:
    return jax.nn.log_softmax(_logits(x))


def _softmax_by_hand(x: Any) -> Any:
    """As in many tutorials: exp(s - max s) over its sum, the exponential written twice."""
    s = _logits(x)
    return jnp.exp(s - s.max(-1, keepdims=True)) / jnp.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)


def _log_softmax_by_hand(x: Any) -> Any:
    s = _logits(x)
    return s - jax.scipy.special.logsumexp(s, axis=-1, keepdims=True)


def _einsum(x: Any) -> Any:
    return jnp.einsum("nd,dc->nc", _features(x), _tensors()["head"]) + _tensors()["bias"]


def _weight_in_front(x: Any) -> Any:
    """One sample at a time, as JAX users like it: W^T z + b under vmap."""
    return jax.vmap(lambda z: _tensors()["head"].T @ z + _tensors()["bias"])(_features(x))


def _turned(x: Any) -> Any:
    return (_tensors()["head"].T @ _features(x).T).T + _tensors()["bias"]


def _sigmoid(x: Any) -> Any:
    return jax.nn.sigmoid(_features(x) @ _tensors()["one"] + 0.3)


def _sigmoid_by_hand(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-(_features(x) @ _tensors()["one"] + 0.3)))


@cache
def _layers() -> Any:
    """Two dense layers of Flax, the second one the head."""

    class Layers(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.body = nnx.Linear(12, 16, rngs=rngs)
            self.head = nnx.Linear(16, _CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(jnp.tanh(self.body(x)))

    return Layers(nnx.Rngs(0))


@cache
def _layers_in_function() -> Any:
    """The head is a function of the model, in a domain of its own."""
    from jax2onnx import onnx_function

    @onnx_function
    class Classifier(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.dense = nnx.Linear(16, _CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    class Layers(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.body = nnx.Linear(12, 16, rngs=rngs)
            self.head = Classifier(rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.body(x)))

    return Layers(nnx.Rngs(0))


def write(make: Callable[[], Any], shape: tuple[int, ...], folder: Path, **options: Any) -> Path:
    """Write what `make` returns with jax2onnx, batch of any size; `options` are its own."""
    path = folder / "model.onnx"
    with quiet():
        import onnx
        from jax2onnx import to_onnx

        onnx.save(to_onnx(make(), [("B", *shape)], **options), path)
    return path


def _head() -> Array:
    return _tensors()["head"].T


def _single() -> Array:
    return np.concatenate([np.zeros((1, 16), np.float32), _tensors()["one"].T])


def _feeds(shape: tuple[int, ...], n: int, rng: np.random.Generator) -> dict[str, Array]:
    return {"in_0": rng.standard_normal((n, *shape)).astype(np.float32)}


def case(
    name: str,
    make: Callable[[], Any],
    weight: Callable[[], Array],
    library: str = "jax",
    shape: tuple[int, ...] = (12,),
    **options: Any,
) -> Case:
    """Return the case of what `make` returns, for samples of a shape."""
    return Case(
        name=f"jax/{name}", route="jax", build=lambda folder: write(make, shape, folder, **options),
        weight=weight, feeds=partial(_feeds, shape), needs=("jax", "jax2onnx", library),
    )  # fmt: skip


def _function(name: str, function: Callable[[Any], Any], weight: Callable[[], Array] = _head) -> Case:
    return case(name, lambda: function, weight)


CASES: tuple[Case, ...] = (
    _function("logits", _logits),
    _function("without-bias", _without_bias),
    _function("softmax", _softmax),
    _function("log-softmax", _log_softmax),
    _function("softmax-by-hand", _softmax_by_hand),
    _function("log-softmax-by-hand", _log_softmax_by_hand),
    _function("einsum", _einsum),
    _function("weight-in-front", _weight_in_front),
    _function("turned", _turned),
    _function("sigmoid", _sigmoid, _single),
    _function("sigmoid-by-hand", _sigmoid_by_hand, _single),
    case("flax", _layers, lambda: np.asarray(_layers().head.kernel[...]).T, "flax"),
    case(
        "flax-function",
        _layers_in_function,
        lambda: np.asarray(_layers_in_function().head.dense.kernel[...]).T,
        "flax",
    ),
)
