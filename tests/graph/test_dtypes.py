"""The table of element types, against what the installed onnx says of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tna_onnx.graph.tensors import FLOAT_TYPES, INTEGER_TYPES, byte_count, code_of, element_type, numpy_name, type_name

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


@pytest.mark.parametrize("name", [n for n, code in TYPES.items() if element_type(code).raw])
def test_raw_dtype_is_numpys(name: str) -> None:
    dtype = np.dtype(element_type(TYPES[name]).raw)
    assert dtype == helper.tensor_dtype_to_np_dtype(TYPES[name])
    assert code_of(dtype) == TYPES[name]


def test_names() -> None:
    assert [type_name(code) for code in FLOAT_TYPES] == ["float", "float16", "double", "bfloat16"]
    assert [numpy_name(code) for code in FLOAT_TYPES] == ["float32", "float16", "float64", "bfloat16"]
    assert [numpy_name(code) for code in INTEGER_TYPES] == [dtype.name for dtype in INTEGER_TYPES.values()]
    assert numpy_name(99) == "99"


@pytest.mark.parametrize(
    ("code", "name"), [(onnx.TensorProto.FLOAT, "float"), (onnx.TensorProto.INT8, "int8"), (0, "undefined"), (99, "99")]
)
def test_type_name(code: int, name: str) -> None:
    assert type_name(code) == name
