"""Models as real exporters and tools write them, each with the truth about its head.

These environments (Python 3.11) have all exporters; the second is needed because later versions of JAX write no
operators that tf2onnx reads:

    pip install torch==2.13.0
    pip install -e '.[cpu]' --group exporters flax hummingbird-ml==0.4.11 jax==0.10.2 jax2onnx==0.17.1 lightgbm==4.7.0 \
        onnxmltools==1.16.0 tensorflow-cpu==2.21.0 tf2onnx==1.17.0 xgboost-cpu==3.2.0
    python -m tests.corpus

    pip install -e '.[cpu]' jax==0.6.2 tensorflow-cpu==2.21.0 tf2onnx==1.17.0
    python -m tests.corpus jax2tf
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tests.corpus.case import OUTCOMES, Case, Unavailable, mismatch, outcome

__all__ = ["ALL", "OUTCOMES", "Case", "Unavailable", "mismatch", "outcome"]

_MODULES = (
    "exported_torch", "exported_two_stage", "exported_transformers", "exported_sklearn", "exported_trees",
    "exported_keras", "exported_jax", "exported_tensorflow", "exported_hummingbird", "optimized", "forms",
)  # fmt: skip

ALL: tuple[Case, ...] = tuple(
    case
    for module in _MODULES
    if find_spec(f"{__name__}.{module}") is not None
    for case in import_module(f"{__name__}.{module}").CASES
)
"""Every case; importing it imports no framework."""
