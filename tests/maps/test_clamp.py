"""The clamp keeps every prediction, in every dtype and on every face, and changes nothing else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import special

from tests.maps.faces import FACES, on_numpy, on_onnxruntime
from tests.maps.samples import reduce_of, sample
from tna_onnx.maps import CLAMPED, MAPS, map_of_class, maps_of
from tna_onnx.maps.clamp import Clamped, can_clamp, clamped_class
from tna_onnx.maps.linear import Bias, MatrixScaling

Array = NDArray[Any]

CLAMPABLE = tuple(name for name in maps_of(3) if not MAPS[name].keeps_order)


def clamped(bias: Array, classes: int | None = None) -> Clamped:
    """A clamp of a map that adds one number a class; of labels where `classes` is 0."""
    return clamped_class(Bias)(Bias(1.0, np.asarray(bias, np.float64)), len(bias) if classes is None else classes)


def by_definition(new: Array, old: Array) -> Array:
    """The prototype's formula, row by row in float64: the first class is raised just above the largest other."""
    out = np.array(new, np.float64)
    for row, first in zip(out, old.argmax(axis=1), strict=True):
        row[first] = max(row[first], np.delete(row, first).max() + 1e-3)
    return out


def logits_of(dtype: Any, size: float) -> st.SearchStrategy[Array]:
    # few different values: many ties
    values = st.one_of(st.sampled_from([-size, -1.0, 0.0, 1.0, size]), st.floats(-size, size, width=16))
    return hnp.arrays(dtype, (6, 5), elements=values)


@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 100.0), (np.float32, 1e4), (np.float64, 1e4)])
@given(data=st.data())
def test_the_first_class_stays_first_with_ties(dtype: Any, size: float, data: Any) -> None:
    old = data.draw(logits_of(dtype, size))
    bias = data.draw(hnp.arrays(np.float64, 5, elements=st.floats(-50, 50, width=16)))
    result = on_numpy(clamped(bias), old)
    assert result.dtype == dtype
    assert np.all(np.isfinite(result))
    np.testing.assert_array_equal(result.argmax(axis=1), old.argmax(axis=1))
    # and in the probabilities of the dtype, as a caller reads them
    p = special.softmax(result.astype(np.float64), axis=1).astype(dtype)
    np.testing.assert_array_equal(p.argmax(axis=1), old.argmax(axis=1))


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e4), (np.float64, 1e4)])
@pytest.mark.parametrize("classes", [0, 2])
@given(data=st.data())
def test_sides_stay_and_order_too(dtype: Any, size: float, classes: int, data: Any) -> None:
    element = st.one_of(st.just(0.0), st.floats(2.0**-10, size, width=32), st.floats(-size, -(2.0**-10), width=32))
    z = data.draw(hnp.arrays(dtype, (8, 1), elements=element))
    shift = data.draw(st.floats(-30, 30, width=16))
    old = z if not classes else np.hstack([-z / 2, z / 2])
    bias = [shift] if not classes else [-shift / 2, shift / 2]
    result = on_numpy(clamped(np.array(bias), classes), old)
    new = result if not classes else result[:, 1:] - result[:, :1]
    np.testing.assert_array_equal(np.sign(new), np.sign(z))
    order = np.argsort(z[:, 0], kind="stable")
    # sums of numbers of this size are rounded
    assert np.all(np.diff(new[order, 0].astype(np.float64)) >= -8 * size * np.finfo(dtype).eps)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_every_face_is_the_definition(face: Any, dtype: Any, *, ties: bool) -> None:
    rng = np.random.default_rng(0)
    old = 3 * rng.standard_normal((200, 6))
    old = np.round(old) if ties else old
    bias = 2 * rng.standard_normal(6)
    result = face(clamped(bias), old.astype(dtype))
    np.testing.assert_array_equal(result.argmax(axis=1), old.argmax(axis=1))
    # a logit of 20 is rounded by 1e-6 in float32
    expected = by_definition(old + bias, old)
    np.testing.assert_allclose(special.softmax(result, axis=1), special.softmax(expected, axis=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 11, 18])
def test_it_needs_no_newer_operators(opset: int) -> None:
    old = np.round(3 * np.random.default_rng(1).standard_normal((100, 4))).astype(np.float32)
    for fitted in (clamped(np.arange(4.0)), clamped(np.arange(4.0), 0)):
        np.testing.assert_allclose(
            on_onnxruntime(fitted, old, opset=opset), on_numpy(fitted, old), rtol=1e-6, atol=1e-6
        )


def test_half_precision_in_a_file_keeps_all() -> None:
    old = np.round(8 * np.random.default_rng(2).standard_normal((2000, 10)), 1).astype(np.float16)
    result = on_onnxruntime(clamped(np.linspace(-9, 9, 10)), old)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result.argmax(axis=1), old.argmax(axis=1))
    assert can_clamp(1000, "float16")
    assert not can_clamp(1001, "float16")


@pytest.mark.parametrize("name", CLAMPABLE)
def test_a_clamp_of_every_map_fits_as_the_map_does(name: str) -> None:
    logits, labels, features = sample(size=300)
    cls = MAPS[CLAMPED + name]
    fitted = cls.fit(reduce_of(logits, labels, features))
    assert isinstance(fitted, Clamped)
    assert fitted.classes == logits.shape[1]
    plain = MAPS[name].fit(reduce_of(logits, labels, features))
    assert fitted.brief == plain.brief
    assert (fitted.keeps_order, fitted.foldable, fitted.needs_features) == (True, False, plain.needs_features)
    assert cls.rank > max(MAPS[other].rank for other in MAPS)
    assert map_of_class(cls.__name__) is cls
    assert CLAMPED + name in MAPS
    assert CLAMPED + name not in list(MAPS)


@example(seed=0)
@given(seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_rows_whose_prediction_stays_are_the_maps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = 3 * rng.standard_normal((50, 4))
    inner = MatrixScaling.fit(reduce_of(*sample(classes=4, size=300)[:2]))
    new = on_numpy(inner, old)
    result = on_numpy(clamped_class(MatrixScaling)(inner, 4), old)
    first, second = np.sort(new, axis=1)[:, :-3:-1].T
    same = (new.argmax(axis=1) == old.argmax(axis=1)) & (first - second > 1e-3)
    np.testing.assert_allclose(
        special.softmax(result[same], axis=1), special.softmax(new[same], axis=1), rtol=0, atol=1e-12
    )
