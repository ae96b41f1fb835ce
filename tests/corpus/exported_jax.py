"""Functions of JAX and layers of Flax, written by jax2onnx. Kernels are (n, C), as JAX users write them."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, class_vectors, normal_feeds, quiet

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


def _logits(z: Any) -> Any:
    return z @ _tensors()["head"] + _tensors()["bias"]


def _one_logit(z: Any) -> Any:
    return z @ _tensors()["one"] + 0.3


def _weight_in_front(z: Any) -> Any:
    """One sample at a time, as JAX users like it: W^T z + b under vmap."""
    return jax.vmap(lambda one: _tensors()["head"].T @ one + _tensors()["bias"])(z)


def _softmax_by_hand(s: Any) -> Any:
    """As in many tutorials: exp(s - max s) over its sum, the exponential written twice."""
    return jnp.exp(s - s.max(-1, keepdims=True)) / jnp.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)


def _log_softmax_by_hand(s: Any) -> Any:
    return s - jax.scipy.special.logsumexp(s, axis=-1, keepdims=True)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "logits": _logits,
    "without-bias": lambda z: z @ _tensors()["head"],
    "softmax": lambda z: jax.nn.softmax(_logits(z)),
    "log-softmax": lambda z: jax.nn.log_softmax(_logits(z)),
    "softmax-by-hand": lambda z: _softmax_by_hand(_logits(z)),
    "log-softmax-by-hand": lambda z: _log_softmax_by_hand(_logits(z)),
    "einsum": lambda z: jnp.einsum("nd,dc->nc", z, _tensors()["head"]) + _tensors()["bias"],
    "weight-in-front": _weight_in_front,
    "turned": lambda z: (_tensors()["head"].T @ z.T).T + _tensors()["bias"],
    "sigmoid": lambda z: jax.nn.sigmoid(_one_logit(z)),
    "sigmoid-by-hand": lambda z: 1 / (1 + jnp.exp(-_one_logit(z))),
}
"""Of the features."""


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


def _transposed(layer: Any) -> Array:
    return np.asarray(layer.kernel[...]).T


def write(make: Callable[[], Any], folder: Path) -> Path:
    """Write what `make` returns with jax2onnx, batch of any size."""
    path = folder / "model.onnx"
    with quiet():
        import onnx
        from jax2onnx import to_onnx

        onnx.save(to_onnx(make(), [("B", 12)]), path)
    return path


def _case(name: str, make: Callable[[], Any], weight: Callable[[], Array], library: str = "jax") -> Case:
    needs = ("jax", "jax2onnx", library)
    return Case(f"jax/{name}", "jax", partial(write, make), weight, feeds=normal_feeds("in_0", 12), needs=needs)


def _function(name: str) -> Case:
    def forward(x: Any) -> Any:
        return _FUNCTIONS[name](jax.nn.relu(x @ _tensors()["body"] + _tensors()["shift"]))

    head = "one" if name.startswith("sigmoid") else "head"
    return _case(name, lambda: forward, lambda: class_vectors(_tensors()[head].T))


CASES: tuple[Case, ...] = (
    *map(_function, _FUNCTIONS),
    _case("flax", _layers, lambda: np.asarray(_layers().head.kernel[...]).T, "flax"),
    _case(
        "flax-function", _layers_in_function, lambda: np.asarray(_layers_in_function().head.dense.kernel[...]).T, "flax"
    ),
)
