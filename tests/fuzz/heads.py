"""Damaged models through head finding and the check on the first batch; what passes must hold on other samples too.

What may be raised: `TnaError`. A head that is taken for linear gives the logits of the graph, as ONNX Runtime computes
them, by `features @ weight.T + bias`.
"""

import math
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.models import data_of
from tna_onnx.data import InputSpec, open_source
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_readout, class_logits
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head
from tna_onnx.runtime import Device

SAMPLES = 8
_MAX_VALUES = 10**6


def case(k: int, seed: int, folder: Path) -> None:
    """Run one case by its number."""
    (folder / "model.onnx").write_bytes(data_of(k, seed))
    model = load_model(folder / "model.onnx")
    heads, _ = find_heads(model)
    if not heads:
        raise UnsupportedModel("no head")
    for head in heads:
        opened = OpenModel(model, head, Device("cpu"))
        # of another scale than the first batch: what only looked linear there is found out
        feeds = inputs(opened.inputs, Random(k), 10.0)
        first = {**inputs(opened.inputs, Random(k), 1.0), "labels": np.arange(SAMPLES) % head.n_classes}
        source = open_source(first, opened.inputs, head.n_classes)
        found = check_readout(opened, head, opened.session, source, SAMPLES).readout
        if isinstance(found, Head) and found.linear:
            features, raw = opened.session.run([head.features, head.logits], feeds)
            assert_linear(found, features, class_logits(model, found, raw, SAMPLES))


def inputs(specs: tuple[InputSpec, ...], random: Random, scale: float) -> dict[str, np.ndarray]:
    """Draw samples for a model's inputs; those that are too large are refused here, not by the package."""
    rng = np.random.default_rng(random.getrandbits(32))
    arrays = {}
    for spec in specs:
        shape = (SAMPLES, *(2 if length is None else length for length in spec.shape[1:]))
        if math.prod(shape) > _MAX_VALUES:
            raise UnsupportedModel("an input that is too large for a test")
        arrays[spec.name] = (scale * rng.standard_normal(shape)).astype(spec.dtype)
    return arrays


def assert_linear(head: Head, features: np.ndarray, logits: np.ndarray) -> None:
    """Hold logits against those of the head, up to one per cent of the sizes of their terms."""
    if head.features_transposed:
        features = features.T
    rows = features.reshape(len(logits), -1).astype(np.float64)
    weight = head.weight.astype(np.float64)
    bias = head.bias.astype(np.float64)
    size = np.abs(rows) @ np.abs(weight).T + np.abs(bias)
    if np.isfinite(size).all() and np.isfinite(logits).all():
        assert (np.abs(rows @ weight.T + bias - logits) <= 0.01 * size + 1e-5).all(), "logits"
