"""The compiled loops of the tilt give the bits that NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tna_onnx.numerics import averages as averages_module
from tna_onnx.numerics import compiled as compiled_module
from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.numerics.compiled import Kernels, add, average, compiled, sum_tilted, turn, weigh
from tna_onnx.numerics.rotations import ClassVectors, Rotations, TiltParameters
from tna_onnx.numerics.stops import find_stops

ANGLES = [1.0, 10.0, 25.0, 40.0]

# not compiled
AS_WRITTEN = Kernels(turn, add, weigh, sum_tilted, average)


def weight_of(classes: int, n: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.random.default_rng([classes, n]).standard_normal((classes, n)).astype(dtype)


def made(weight: NDArray[Any], members: int, seed: int = 3) -> list[Average]:
    return [*averages(weight, ANGLES, members, Draws(seed))]


def use(monkeypatch: pytest.MonkeyPatch, kernels: Kernels | None) -> None:
    monkeypatch.setattr(compiled_module, "_LARGE", 0)
    monkeypatch.setattr(compiled_module, "_kernels", lambda: kernels)


def assert_same(found: list[Average], expected: list[Average]) -> None:
    assert len(found) == len(expected) == len(ANGLES)
    for one, other in zip(found, expected, strict=True):
        assert one.weight.dtype == other.weight.dtype
        np.testing.assert_array_equal(one.weight, other.weight)
        assert (one.rotations, one.reached) == (other.rotations, other.reached)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("classes", "n", "members"), [(2, 3, 4), (5, 2, 3), (9, 6, 1), (3, 12, 5)])
def test_the_loops_as_they_are_written(
    classes: int, n: int, members: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(classes, n, dtype)
    expected = made(weight, members)
    use(monkeypatch, AS_WRITTEN)
    assert_same(made(weight, members), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("classes", "n", "members"), [(2, 3, 4), (10, 64, 32), (700, 40, 5), (130, 300, 20), (1, 50, 9)]
)
def test_the_loops_when_they_are_compiled(
    classes: int, n: int, members: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    weight = weight_of(classes, n, dtype)
    expected = made(weight, members)
    kernels = compiled_module._kernels()
    assert kernels is not None
    use(monkeypatch, kernels)
    assert_same(made(weight, members), expected)


@pytest.mark.parametrize("n_t", [1, 7, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("classes", "n", "paths"), [(1, 4, 3), (3, 3, 6), (6, 8, 5), (12, 40, 4)])
def test_stops_near_and_past_90_degrees(
    classes: int, n: int, paths: int, dtype: Any, n_t: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some classes pass 90 degrees within a window, long before mRC does: fewer rotations can then be left out."""
    weight = weight_of(classes, n, dtype)
    if classes > 3:
        weight[1] = 0
    start = ClassVectors.of(weight)
    rotations = Rotations(n, 2, TiltParameters(n_t=n_t))
    angles = np.radians([0.0, 5.0, 30.0, 46.0, 47.0, 60.0, 75.0, 85.0, 89.9, 90.1, 110.0])
    expected = find_stops(start, rotations, np.arange(1, paths + 1), angles)
    use(monkeypatch, AS_WRITTEN)
    found = find_stops(start, rotations, np.arange(1, paths + 1), angles)
    np.testing.assert_array_equal(found.rotations, expected.rotations)
    np.testing.assert_array_equal(found.reached, expected.reached)
    assert (expected.rotations[:, :3] > 0).all()


@pytest.mark.parametrize("tile", [1, 4, 512])
def test_loops_over_few_classes_at_a_time(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(9, 12)
    expected = made(weight, 4)
    use(monkeypatch, AS_WRITTEN)
    monkeypatch.setattr(compiled_module, "_TILE", tile)
    assert_same(made(weight, 4), expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_weights_that_cannot_be_written_to(order: Any) -> None:
    """Weights of a file are mapped into memory; where features come first, they are used as they are."""
    pytest.importorskip("numba")
    kernels = compiled_module._kernels()
    assert kernels is not None
    weight = np.asarray(weight_of(20, 30), order=order)
    before = weight.copy()
    weight.flags.writeable = False
    expected = made(weight, 4)
    with pytest.MonkeyPatch.context() as patch:
        use(patch, kernels)
        assert_same(made(weight, 4), expected)
    np.testing.assert_array_equal(weight, before)


def test_a_zero_class_vector_and_pairs_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(6, 20)
    weight[2] = 0
    draws = Draws(1, antithetic=True)
    expected = [*averages(weight, ANGLES, 7, draws)]
    use(monkeypatch, AS_WRITTEN)
    assert_same([*averages(weight, ANGLES, 7, draws)], expected)


def test_small_work_and_other_numbers_are_left_to_numpy() -> None:
    assert compiled(1000, np.dtype(np.float32)) is None
    assert compiled(1e12, np.dtype(np.float16)) is None


def test_without_numba_all_is_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    assert compiled_module._kernels.__wrapped__() is None


def test_many_classes_are_turned_through_the_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(90, 12, np.float64)
    by_basis = made(weight, 6)
    monkeypatch.setattr(averages_module, "_MANY", np.inf)
    for one, other in zip(by_basis, made(weight, 6), strict=True):
        # both round some hundred times numbers below 5
        np.testing.assert_allclose(one.weight, other.weight, rtol=0, atol=1e-12)
        assert (one.rotations, one.reached) == (other.rotations, other.reached)
