"""The bound on what rounding may do to a probability: from its formula, and from rounding that really happens."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.pipeline.samples import of_logits, probabilities
from tna_onnx.graph.nodes import NodeOps
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.ops import ArrayOps
from tna_onnx.pipeline import checking as rounding
from tna_onnx.pipeline.checking import probability_bounds
from tna_onnx.pipeline.job import Task
from tna_onnx.runtime import Device
from tna_onnx.runtime.session import CUDA

EPS = 2.0**-23  # of float32


def features_and_logits(task: Task, samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    assert task.head is not None
    z = task.calibration.table.features[:samples].astype(np.float64)
    return z, z @ task.head.weight.T.astype(np.float64) + task.head.bias


def with_readout(task: Task, **fields: Any) -> Task:
    return replace(task, probed=replace(task.probed, readout=replace(task.readout, **fields)))


def test_the_formula_by_a_loop(task: Task) -> None:
    z, s = features_and_logits(task, 3)
    head = task.head
    assert head is not None
    for row, bound in zip(z, probability_bounds(task, z, s, None), strict=True):
        a = max(sum(abs(x * w) for x, w in zip(row, head.weight[c], strict=True)) + abs(head.bias[c]) for c in range(5))
        assert bound == pytest.approx(8 * EPS * a + 1e-6, rel=1e-9)


def test_float32_products_in_any_order_stay_within(task: Task) -> None:
    z, s = features_and_logits(task)
    head = task.head
    assert head is not None
    bound = probability_bounds(task, z, s, None)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(z.shape[1])
        rounded = np.float32(z[:, order]) @ head.weight[:, order].T + head.bias
        assert np.all(np.abs(probabilities(rounded) - probabilities(s)).max(axis=1) <= bound)


def test_a_coarse_type_is_bounded_by_random_signs(task: Task) -> None:
    """Float16: half of the root of the sum of squares plus half of the logit, not the sum of all terms."""
    z, s = features_and_logits(task, 3)
    z, s = z / 300, s / 300
    half = with_readout(task, logits_type="float16")
    head = task.head
    assert head is not None
    for row, bound in zip(z, probability_bounds(half, z, s, None), strict=True):
        terms = [[*(row * w), b] for w, b in zip(head.weight, head.bias, strict=True)]
        a = max((math.hypot(*each) + abs(math.fsum(each))) / 2 for each in terms)
        assert bound == pytest.approx(min(0.05, 8 * 2.0**-10 * a + 1e-6), rel=1e-6)


def test_a_step_of_every_feature_moves_a_logit_by_the_length_of_its_vector(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, s = features_and_logits(task)
    head = task.head
    assert head is not None
    plain = probability_bounds(task, z, s, None)
    step = 1e-4
    monkeypatch.setattr(rounding, "quantization_step", lambda model, head: step)
    bound = probability_bounds(task, z, s, None)
    np.testing.assert_allclose(bound - plain, step * np.linalg.norm(head.weight, axis=1).max() / 2, rtol=1e-6)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (50, *z.shape))
    moved = (z + step * signs) @ head.weight.T.astype(np.float64) + head.bias
    powers = [np.exp(scores - scores.max(axis=-1, keepdims=True)) for scores in (moved, s)]
    p, q = (each / each.sum(axis=-1, keepdims=True) for each in powers)
    assert np.mean(np.abs(p - q).max(axis=-1) < bound) > 0.95


def test_a_steep_map_has_a_wider_bound_and_a_flat_one_hardly(task: Task) -> None:
    z, s = features_and_logits(task)
    plain = probability_bounds(task, z, s, None)
    flat = probability_bounds(task, z, s, Temperature(100.0))
    # softmax(s / T) moves by at most 1/(2T) of what s moves, and four times that is added
    assert np.all(flat - 1e-6 <= (plain - 1e-6) * (1 + 4 / 100) + 1e-12)
    assert np.all(flat >= plain)
    middle = float(np.median(probabilities(s)[:, 0]))
    ramp = ((middle, middle + 1e-3), (-2.0, 2.0))
    steep = probability_bounds(task, z, s, SmoothedIsotonic((ramp,) * 5))
    assert np.max(steep / plain) > 3
    assert np.all(steep >= plain)


@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4])
def test_a_map_rounds_in_its_own_steps(small: Small, width: float) -> None:
    """Logits near 0 hardly round, but the probabilities that a steep map reads do: by the unit of their own size."""
    task = of_logits(small)
    s = 1e-4 * np.random.default_rng(0).standard_normal((400, 5))
    fitted = SmoothedIsotonic((((0.2 - width, 0.2 + width), (-2.0, 2.0)),) * 5)
    ops = NodeOps("float32", 17)
    result = fitted.forward(ops, "logits")
    model = small_model(ops.nodes, [tensor_info("logits", ["N", 5])], [tensor_info(result)], ops.initializers)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    written = probabilities(session.run(None, {"logits": s.astype(np.float32)})[0])
    exact = probabilities(fitted.forward(ArrayOps(s), s))
    bound = probability_bounds(task, s, s, fitted)
    assert np.all(np.abs(written - exact).max(axis=1) <= bound)
    # the runtime's rounding stays visible beside it: a fault of ten times the bound cannot hide
    assert np.max(bound) <= 100 * np.max(np.abs(written - exact))


def test_tf32_is_bounded_as_a_coarse_type_is(task: Task) -> None:
    z = task.calibration.table.features[:50].astype(np.float64)
    s = task.logits(task.weight).at(np.arange(50)).astype(np.float64)
    plain = probability_bounds(task, z, s, None)
    on_cuda = replace(task, provider=CUDA)
    opened = copy.copy(task.opened)
    opened.device = Device("cuda", tf32=False)
    off = replace(on_cuda, opened=opened)
    assert (probability_bounds(on_cuda, z, s, None) > 20 * plain).all()
    np.testing.assert_array_equal(probability_bounds(off, z, s, None), plain)
