"""Keras 3 models on the torch backend, written by `Model.export(format="onnx")`.

Kernels are stored as (n, C). Images are NHWC. The first import of Keras fixes its backend, so importing this module
asks for torch in the environment.
"""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, Library, Unavailable, class_vectors, quiet

os.environ.setdefault("KERAS_BACKEND", "torch")

torch = Library("torch")

Array = NDArray[Any]
_CLASSES = 5


def _keras() -> Any:
    """Import Keras.

    Raises:
        Unavailable: it runs on another backend.
    """
    with quiet():
        import keras
    if keras.backend.backend() != "torch":
        raise Unavailable(f"Keras runs on {keras.backend.backend()}, not on torch")
    return keras


def _mlp(keras: Any, classes: int = _CLASSES, activation: str | None = "softmax") -> tuple[Any, Any]:
    x = keras.Input((12,), name="x")
    hidden = keras.layers.Dense(16, activation="relu")(x)
    return x, keras.layers.Dense(classes, activation=activation, name="head")(hidden)


def _softmax_layer(keras: Any) -> tuple[Any, Any]:
    x, logits = _mlp(keras, activation=None)
    return x, keras.layers.Softmax()(logits)


def _trunk(keras: Any) -> tuple[Any, Any]:
    x = keras.Input((8, 8, 3), name="x")
    maps = keras.layers.Conv2D(16, 3, strides=2, padding="same")(x)
    return x, keras.layers.ReLU()(keras.layers.BatchNormalization()(maps))


def _cnn(keras: Any) -> tuple[Any, Any]:
    x, maps = _trunk(keras)
    pooled = keras.layers.Dropout(0.3)(keras.layers.GlobalAveragePooling2D()(maps))
    return x, keras.layers.Dense(_CLASSES, activation="softmax", name="head")(pooled)


def _cnn_flat(keras: Any) -> tuple[Any, Any]:
    x, maps = _trunk(keras)
    flat = keras.layers.Flatten()(keras.layers.MaxPooling2D()(maps))
    return x, keras.layers.Dense(_CLASSES, name="head")(flat)


def _mobilenet(keras: Any) -> tuple[Any, Any]:
    """As keras.applications.MobileNet: pooling that keeps the axes, a 1x1 convolution, Reshape, softmax."""
    x, maps = _trunk(keras)
    pooled = keras.layers.GlobalAveragePooling2D(keepdims=True)(maps)
    scores = keras.layers.Conv2D(_CLASSES, 1, name="head")(pooled)
    return x, keras.layers.Activation("softmax")(keras.layers.Reshape((_CLASSES,))(scores))


_MODELS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "dense-softmax": _mlp,
    "dense-logits": partial(_mlp, activation=None),
    "softmax-layer": _softmax_layer,
    "dense-sigmoid": partial(_mlp, classes=1, activation="sigmoid"),
    "multi-label": partial(_mlp, activation="sigmoid"),
    "cnn-softmax": _cnn,
    "cnn-flatten": _cnn_flat,
    "cnn-conv-head": _mobilenet,
}


@cache
def _model(name: str) -> Any:
    keras = _keras()
    with quiet(), torch.random.fork_rng(devices=[]):
        rng, model = np.random.default_rng(2), keras.Model(*_MODELS[name](keras))
        for variable in model.variables:  # not through keras' seeds, which are global
            if variable.dtype == "float32":
                low = 0.5 if "variance" in variable.path or "gamma" in variable.path else -0.5
                variable.assign(rng.uniform(low, low + 1, variable.shape).astype(np.float32))
        model(np.zeros((2, *model.input_shape[1:]), np.float32))  # export asks for one call
    return model


def _weight(name: str) -> Array:
    keras = _keras()
    with quiet():
        kernel = keras.ops.convert_to_numpy(_model(name).get_layer("head").kernel)
    return class_vectors(kernel.reshape(kernel.shape[-2:]).T.copy())


def _feeds(name: str, n: int, rng: np.random.Generator) -> dict[str, Array]:
    return {"x": rng.standard_normal((n, *_model(name).input_shape[1:])).astype(np.float32)}


def write(name: str, folder: Path) -> Path:
    """Write a model as Keras does by default."""
    path = folder / "model.onnx"
    with quiet():
        _model(name).export(path, format="onnx", verbose=False)
    return path


def _case(name: str) -> Case:
    return Case(
        name=f"keras/{name}",
        route="keras",
        build=partial(write, name),
        weight=partial(_weight, name),
        feeds=partial(_feeds, name),
        needs=("keras", "torch", "onnxscript"),
    )


CASES: tuple[Case, ...] = tuple(_case(name) for name in _MODELS)
