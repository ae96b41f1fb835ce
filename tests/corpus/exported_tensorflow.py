"""TensorFlow as its users save it, written by tf2onnx: SavedModels with functions, and JAX through jax2tf.

Kernels are (n, C). Keras fixes its backend at its first import, so that the layers here are those of `tf.Module`. JAX
up to 0.6 spells its operators out in TensorFlow's; later ones write XLA's, which tf2onnx does not read.
"""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, Unavailable, class_vectors, normal_feeds, quiet

jax = Library("jax")
jnp = Library("jax.numpy")

Array = NDArray[Any]
_CLASSES = 5
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Without it JAX looks for an accelerator first, and warns.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@cache
def _tensors(classes: int = _CLASSES) -> dict[str, Array]:
    rng = np.random.default_rng(9)
    shapes = {"body": (12, 16), "shift": (16,), "head": (16, classes), "bias": (classes,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _truth(classes: int = _CLASSES) -> Array:
    return class_vectors(_tensors(classes)["head"].T)


def _saved(after: Callable[[Any, Any], Any], classes: int, folder: Path) -> Path:
    """Save a module whose layers are functions of their own, as a SavedModel."""
    import tensorflow as tf

    class Dense(tf.Module):
        def __init__(self, weight: Array, bias: Array) -> None:
            super().__init__()
            self.weight, self.bias = tf.Variable(weight), tf.Variable(bias)

        @tf.function
        def __call__(self, x: Any) -> Any:
            return tf.nn.bias_add(tf.matmul(x, self.weight), self.bias)

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            body, shift, head, bias = _tensors(classes).values()
            self.body, self.head = Dense(body, shift), Dense(head, bias)

        @tf.function(input_signature=[tf.TensorSpec((None, 12), tf.float32, name="x")])
        def __call__(self, x: Any) -> Any:
            return after(tf, self.head(tf.nn.relu(self.body(x))))

    net = Net()
    tf.saved_model.save(net, str(folder / "saved"), signatures=net.__call__)
    return folder / "saved"


def write(after: Callable[[Any, Any], Any], classes: int, opset: int, folder: Path) -> Path:
    """Convert a SavedModel with functions, as `python -m tf2onnx.convert --saved-model` does."""
    path = folder / "model.onnx"
    with quiet():
        from tf2onnx import convert, tf_loader

        saved = str(_saved(after, classes, folder))
        graph, inputs, outputs, initialized, shapes = tf_loader.from_saved_model(
            saved, None, None, return_initialized_tables=True, return_tensors_to_rename=True
        )
        convert._convert_common(
            graph, name="saved", input_names=inputs, output_names=outputs, opset=opset, output_path=str(path),
            initialized_tables=initialized, tensors_to_rename=shapes,
        )  # fmt: skip
    return path


def _jax_forward(name: str) -> Callable[[Any], Any]:
    body, shift, head, bias = _tensors(1 if name == "sigmoid" else _CLASSES).values()
    after: dict[str, Callable[[Any], Any]] = {
        "softmax": jax.nn.softmax,
        "log-softmax": jax.nn.log_softmax,
        "sigmoid": jax.nn.sigmoid,
        "logsumexp": lambda s: s - jax.scipy.special.logsumexp(s, axis=-1, keepdims=True),
        "exp-log-softmax": lambda s: jnp.exp(jax.nn.log_softmax(s)),
    }

    def forward(x: Any) -> Any:
        features = jax.nn.relu(x @ body + shift)
        if name == "vmap":
            return jax.vmap(lambda z: head.T @ z + bias)(features)
        return after.get(name, lambda s: s)(features @ head + bias)

    return forward


def write_jax(name: str, opset: int, folder: Path) -> Path:
    """Write a function of JAX through jax2tf, which spells softmax in simple operators."""
    path = folder / "model.onnx"
    with quiet():
        import tensorflow as tf
        import tf2onnx
        from jax.experimental import jax2tf

        if not hasattr(jax2tf.jax2tf, "GraphSerializationImpl"):
            raise Unavailable("jax2tf writes XLA's operators, which tf2onnx does not read; JAX 0.6 wrote TensorFlow's")
        converted = jax2tf.convert(
            _jax_forward(name), polymorphic_shapes=["(b, 12)"], native_serialization=False, enable_xla=False
        )
        signature = [tf.TensorSpec((None, 12), tf.float32, name="x")]
        tf2onnx.convert.from_function(
            tf.function(converted, input_signature=signature, autograph=False), input_signature=signature, opset=opset,
            output_path=str(path),
        )  # fmt: skip
    return path


def _case(name: str, build: Callable[[Path], Path], classes: int = _CLASSES, *needs: str) -> Case:
    modules = ("tensorflow", "tf2onnx", *needs)
    weight, feeds = partial(_truth, classes), normal_feeds("x", 12)
    return Case(f"tf2onnx/{name}", "tf2onnx", build, weight, feeds=feeds, needs=modules)


_AFTER: dict[str, Callable[[Any, Any], Any]] = {
    "logits": lambda tf, s: s,
    "softmax": lambda tf, s: tf.nn.softmax(s),
    "log-softmax": lambda tf, s: tf.nn.log_softmax(s),
    "sigmoid": lambda tf, s: tf.sigmoid(s),
    "sigmoid-squeezed": lambda tf, s: tf.sigmoid(s)[:, 0],
    "logit-squeezed-sigmoid": lambda tf, s: tf.sigmoid(tf.squeeze(s, -1)),
    "sigmoid-pair": lambda tf, s: tf.concat([1 - tf.sigmoid(s), tf.sigmoid(s)], -1),
    "softmax-by-hand": lambda tf, s: (
        tf.exp(s - tf.reduce_max(s, -1, True))
        / tf.reduce_sum(tf.exp(s - tf.reduce_max(s, -1, True)), -1, keepdims=True)
    ),
    "clipped": lambda tf, s: tf.clip_by_value(tf.nn.softmax(s), 1e-7, 1 - 1e-7),
}


def _saved_case(name: str, opset: int = 17) -> Case:
    classes = 1 if "sigmoid" in name else _CLASSES
    suffix = "" if opset == 17 else f"-opset{opset}"
    return _case(f"saved-{name}{suffix}", partial(write, _AFTER[name], classes, opset), classes)


CASES: tuple[Case, ...] = (
    *map(_saved_case, _AFTER),
    *(_saved_case("softmax", opset) for opset in (9, 11, 13)),
    _saved_case("sigmoid-squeezed", 9),
    *(
        _case(f"jax2tf-{name}", partial(write_jax, name, 17), 1 if name == "sigmoid" else _CLASSES, "jax")
        for name in ("logits", "softmax", "log-softmax", "sigmoid", "logsumexp", "exp-log-softmax", "vmap")
    ),
    *(
        _case(f"jax2tf-softmax-opset{opset}", partial(write_jax, "softmax", opset), _CLASSES, "jax")
        for opset in (9, 13)
    ),
)
