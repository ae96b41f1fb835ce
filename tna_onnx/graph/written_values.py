"""Values of a written file, for the writer that makes the same file again (see `pipeline.change`).

A large array is not in the metadata of a file. Where the writer needs it, it computes with placeholders, and whatever
comes out as no number is taken from the file: under the same name, of the same type and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import FLOAT_TYPES, byte_count, is_external

__all__ = ["PLACEHOLDER_INT", "NotRebuilt", "WrittenValues"]

PLACEHOLDER_INT = int(np.iinfo(np.int64).min)
"""What stands for a whole number that is not there; NaN stands for others."""


class NotRebuilt(Exception):
    """Why the writer cannot make a file again; the text is shown to the user."""


@dataclass(frozen=True)
class WrittenValues:
    """A file of which values are taken.

    Attributes:
        model: the file.
        roles: `weight`, `bias`: taken from it as a whole.
        rename: from the name that the writer has for a constant to that in the file.
    """

    model: Model
    roles: Collection[str] = ()
    rename: Callable[[str], str] = str

    def taken(self, tensor: onnx.TensorProto, *, infinite: bool = False) -> onnx.TensorProto:
        """Return a tensor with the values that it has in the file.

        Args:
            tensor: name, type and shape.
            infinite: whether a value may be infinite: the last threshold of a dial is.

        Raises:
            NotRebuilt: the file has none of this name, type and shape, or some are not finite.
        """
        name = self.rename(tensor.name)
        theirs = self.model.constant_tensor(name)
        if theirs is None or theirs.data_type != tensor.data_type or list(theirs.dims) != list(tensor.dims):
            raise NotRebuilt(f"expected a tensor '{name}' of the type and shape that it is written in")
        values = self.model.array(theirs)
        floats = self.model.floats(theirs) if tensor.data_type in FLOAT_TYPES else np.zeros(0)
        if not np.all(~np.isnan(floats) if infinite else np.isfinite(floats)):
            raise NotRebuilt(f"tensor '{name}' holds NaN or infinite values, which are never written")
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        # the key of values apart stays one; external data are read
        copy.raw_data = values.tobytes() if is_external(theirs) else theirs.raw_data
        if self.model.data_apart(theirs) is None and len(copy.raw_data) != byte_count(tensor):
            raise NotRebuilt(f"tensor '{name}' is stored in another form than it is written in")
        return copy

    def taken_attribute(self, node: onnx.NodeProto, name: str) -> NDArray[np.float32]:
        """Return the numbers in an attribute of a node.

        Raises:
            NotRebuilt: the file has no such node, or some are not finite.
        """
        for other in self.model.proto.graph.node:
            if (other.op_type, other.name, list(other.input)) == (node.op_type, node.name, list(node.input)):
                values = [np.array(a.floats, np.float32) for a in other.attribute if a.name == name]
                if len(values) == 1 and np.all(np.isfinite(values[0])):
                    return values[0]
        raise NotRebuilt(f"expected finite numbers in the attribute '{name}' of node '{node.name}'")
