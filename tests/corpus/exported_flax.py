"""Layers of JAX libraries (Flax, its older API, Equinox) and dots as Haiku writes them, written by jax2onnx.

Kernels are (n, C), those of Equinox (C, n). Images are NHWC.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, class_vectors
from tests.corpus.exported_jax import case

Array = NDArray[Any]
_CLASSES = 5


@cache
def _nnx(name: str) -> Any:
    """Return a model of Flax with a layer `head`."""
    import jax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            if name.startswith("conv"):
                self.body = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
            else:
                self.body = nnx.Linear(12, 16, rngs=rngs)
            if name == "conv-head":
                self.head = nnx.Conv(16, _CLASSES, (1, 1), rngs=rngs)
            elif name == "general":
                self.head = nnx.LinearGeneral(16, (_CLASSES,), rngs=rngs)
            elif name == "einsum":
                self.head = nnx.Einsum("nd,dc->nc", (16, _CLASSES), (_CLASSES,), rngs=rngs)
            else:
                self.head = nnx.Linear(16, 1 if "binary" in name else _CLASSES, use_bias=name != "plain", rngs=rngs)
            self.norm = nnx.BatchNorm(16, use_running_average=True, rngs=rngs)
            self.drop = nnx.Dropout(0.5, deterministic=True, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            features = nnx.relu(self.body(x))
            if name == "conv-norm":
                features = nnx.relu(self.norm(self.body(x)))
            if name == "conv-head":
                return nnx.softmax(self.head(features).mean((1, 2)))
            if name.startswith("conv"):
                features = features.mean((1, 2))
            scores = self.head(self.drop(features))
            return _AFTER.get(name, lambda s: s)(scores)

    _AFTER: dict[str, Callable[[Any], Any]] = {
        "softmax": nnx.softmax,
        "log-softmax": nnx.log_softmax,
        "conv-norm": nnx.softmax,
        "binary-sigmoid": nnx.sigmoid,
        "binary-squeezed": lambda s: nnx.sigmoid(s)[:, 0],
        "clipped": lambda s: jax.numpy.clip(nnx.softmax(s), 1e-7, 1 - 1e-7),
        "temperature": lambda s: nnx.softmax(s / 1.5),
    }
    return Net(nnx.Rngs(0))


@cache
def _linen() -> tuple[Any, Any]:
    """Return a model of Flax's older API, and its parameters."""
    import jax
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            features = linen.relu(linen.Dense(16)(x))
            return linen.softmax(linen.Dense(_CLASSES, name="head")(features))

    net = Net()
    return net, net.init(jax.random.key(0), np.zeros((2, 12), np.float32))


def _linen_applied() -> Callable[[Any], Any]:
    net, parameters = _linen()
    return lambda x: net.apply(parameters, x)


@cache
def _equinox() -> Any:
    """Return a model of Equinox, which computes one sample at a time."""
    import equinox as eqx
    import jax

    return eqx.nn.MLP(12, _CLASSES, 16, 1, key=jax.random.key(0))


def _equinox_mapped() -> Callable[[Any], Any]:
    import jax

    return jax.vmap(_equinox())


@cache
def _haiku(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(8)
    shapes = {"w1": (12, 16), "w2": (16, _CLASSES), "b2": (_CLASSES,)}
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def _dots(name: str) -> Callable[[Any], Any]:
    """Layers as Haiku's Linear computes them: jnp.dot with a precision, and the bias broadcast to the result."""
    import jax
    import jax.numpy as jnp

    p = {key: jnp.asarray(value) for key, value in _haiku(name).items()}

    def forward(x: Any) -> Any:
        features = jax.nn.relu(jnp.dot(x, p["w1"], precision=None))
        if name == "dot-general":
            scores = jax.lax.dot_general(features, p["w2"].T, (((1,), (1,)), ((), ())))
        else:
            scores = jnp.dot(features, p["w2"], precision=jax.lax.Precision.HIGHEST)
        scores = scores + jnp.broadcast_to(p["b2"], scores.shape)
        return scores if name == "dot-general" else jax.nn.softmax(scores)

    return forward


def _nnx_weight(name: str) -> Array:
    kernel = np.asarray(_nnx(name).head.kernel[...])
    return class_vectors(kernel.reshape(kernel.shape[-2:]).T)


def _flax(name: str, kind: str | None = None, **options: Any) -> Case:
    kind = kind or name
    shape = (8, 8, 3) if kind.startswith("conv") else (12,)
    return case(f"flax-{name}", partial(_nnx, kind), partial(_nnx_weight, kind), "flax", shape, **options)


CASES: tuple[Case, ...] = (
    *map(_flax, ("plain", "softmax", "log-softmax", "clipped", "temperature", "binary-sigmoid", "binary-squeezed")),
    *map(_flax, ("conv", "conv-norm", "conv-head", "general", "einsum")),
    _flax("softmax-opset15", "softmax", opset=15),
    _flax("softmax-channels-first", "conv-norm", inputs_as_nchw=[0]),
    case("flax-linen", _linen_applied, lambda: np.asarray(_linen()[1]["params"]["head"]["kernel"]).T, "flax"),
    case("equinox", _equinox_mapped, lambda: np.asarray(_equinox().layers[-1].weight), "equinox"),
    *(
        case(f"haiku-{name}", partial(_dots, name), lambda name=name: _haiku(name)["w2"].T)
        for name in ("dot", "dot-general")
    ),
)
