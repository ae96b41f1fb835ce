"""The table of element types, against what the installed onnx says of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tna_onnx.graph.tensors import byte_count, element_type

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
