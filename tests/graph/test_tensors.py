"""Element types: the table against onnx's, rounding as the type's own library does it, tensors that ONNX reads back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tna_onnx.graph.tensors import FLOAT_TYPES, byte_count, element_type, epsilon, float_tensor, numpy_type, rounded

TYPES = {
    name: code
    for name, code in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING")  # which have no size
}


@pytest.mark.parametrize("name", TYPES)
def test_field_is_the_one_onnx_names(name: str) -> None:
    assert element_type(TYPES[name]).field == helper.tensor_dtype_to_field(TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_those_onnx_writes(name: str) -> None:
    """Five elements: packed types fill their last byte."""
    zeros = np.zeros(5, helper.tensor_dtype_to_np_dtype(TYPES[name]))
    tensor = onnx.numpy_helper.from_array(zeros, "zeros")
    tensor.data_type = TYPES[name]
    assert byte_count(tensor) == len(tensor.raw_data)


NAMES = tuple(FLOAT_TYPES.values())
SINGLE = st.floats(width=32)
# ties between two bfloat16 numbers, and the largest numbers that stay finite
EDGES = [
    0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.3895314e38, 3.3961775e38, 3.4028235e38, np.inf, -np.inf, np.nan,
    2**-133, 2**-134, 3 * 2**-134, 1.1754944e-38, 2.0**-149,
]  # fmt: skip


def bits(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32).view(np.uint32)


@pytest.mark.parametrize(
    "source", [np.float32(EDGES), np.arange(0, 2**32, 65521, np.uint64).astype(np.uint32).view(np.float32)]
)
def test_bfloat16_is_that_of_ml_dtypes(source: np.ndarray) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with np.errstate(invalid="ignore", over="ignore"):
        expected = source.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = rounded(source, "bfloat16")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(found[there]), bits(expected[there]))  # to the sign of zero


@pytest.mark.parametrize("name", NAMES)
@given(value=SINGLE)
def test_rounding_is_idempotent_and_odd(name: str, value: float) -> None:
    array = np.array([value])
    once = rounded(array, name)
    assert once.dtype == numpy_type(name)
    np.testing.assert_array_equal(rounded(once, name), once, strict=True)
    np.testing.assert_array_equal(rounded(-array, name), -once, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_epsilon_is_the_step_at_one(name: str) -> None:
    eps = epsilon(name)
    assert rounded(np.array(1 + eps), name) == 1 + eps
    assert rounded(np.array(1 + eps / 2), name) == 1  # half way, to even


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 1, 0), (4, 1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_read_back(name: str, shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(2).standard_normal(shape)
    tensor = float_tensor(value, name, "w")
    onnx.checker.check_tensor(tensor)
    assert (tensor.name, tuple(tensor.dims), FLOAT_TYPES[tensor.data_type]) == ("w", shape, name)
    assert len(tensor.raw_data) == value.size * (2 if name == "bfloat16" else numpy_type(name).itemsize)
    found = np.asarray(numpy_helper.to_array(tensor)).astype(numpy_type(name))
    np.testing.assert_array_equal(found, rounded(value, name), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_views_are_rounded_in_their_own_order(name: str) -> None:
    value = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    value.flags.writeable = False
    for view in (value.T, value[::2], value[:, ::-1], np.broadcast_to(value[:1], (3, 6)), value.astype(">f4")):
        expected = rounded(np.array(view, np.float32, order="C"), name)
        np.testing.assert_array_equal(rounded(view, name), expected)
        back = np.asarray(numpy_helper.to_array(float_tensor(view, name, "w"))).astype(numpy_type(name))
        np.testing.assert_array_equal(back, expected)
