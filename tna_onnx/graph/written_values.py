"""Values of a written file, for the writer that makes the same file again (see `pipeline.change`).

A large array is not in the metadata of a file. Where the writer needs it, it computes with placeholders, and whatever
comes out as no number is taken from the file: under the same name, of the same type and shape.

A patch holds no more of a file than these values: `new_values` takes them out, and `stand_in` gives them to the writer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.difference import content_digest
from tna_onnx.graph.external import is_external
from tna_onnx.graph.load import Model
from tna_onnx.graph.tensors import FLOAT_TYPES, byte_count, code_of

PLACEHOLDER_INT = int(np.iinfo(np.int64).min)
"""What stands for a whole number that is not there; NaN stands for others."""


class NotRebuilt(Exception):
    """Why the writer cannot make a file again; the text is shown to the user."""


@dataclass(frozen=True)
class WrittenValues:
    """A file of which values are taken."""

    model: Model  # the file
    roles: Collection[str] = ()  # `weight`, `bias`: taken from it as a whole
    rename: Callable[[str], str] = str  # from the name that the writer has for a constant to that in the file

    def taken(self, tensor: onnx.TensorProto, *, infinite: bool = False) -> onnx.TensorProto:
        """Return a tensor with the values that it has in the file.

        `infinite`: whether a value may be infinite: the last threshold of a dial is.
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
        if self.model.large_value(theirs) is None and len(copy.raw_data) != byte_count(tensor):
            raise NotRebuilt(f"tensor '{name}' is stored in another form than it is written in")
        return copy

    def taken_attribute(self, node: onnx.NodeProto, name: str) -> NDArray[np.float32]:
        """Return the numbers in an attribute of a node."""
        for other in self.model.proto.graph.node:
            if (other.op_type, other.name, list(other.input)) == (node.op_type, node.name, list(node.input)):
                values = [np.array(a.floats, np.float32) for a in other.attribute if a.name == name]
                if len(values) == 1 and np.all(np.isfinite(values[0])):
                    return values[0]
        raise NotRebuilt(f"expected finite numbers in the attribute '{name}' of node '{node.name}'")


Typed = tuple[NDArray[Any], list[int]]
"""Values, and nothing; or, of types that NumPy lacks, bytes, and the ONNX code of the type and the dimensions."""


def new_values(source: Model, file: Model) -> dict[str, Typed]:
    """Return all constants of a file that its source does not have, by name; numbers in attributes by `_key`."""
    values: dict[str, Typed] = {}
    constants = (name for node in file.proto.graph.node if node.op_type == "Constant" for name in node.output)
    for name in (*file.initializers, *constants):
        tensor, old = file.constant_tensor(name), source.constant_tensor(name)
        if tensor is None or (old is not None and _same(source, old, file, tensor)):
            continue
        array = file.array(tensor)
        if array.dtype.isbuiltin == 1:
            values[name] = array, []
        else:
            values[name] = np.frombuffer(array.tobytes(), np.uint8), [tensor.data_type, *tensor.dims]
    old_numbers = {key: tuple(numbers.floats) for key, _, numbers in _attributes(source)}
    for key, _, numbers in _attributes(file):
        if tuple(numbers.floats) != old_numbers.get(key):
            values[key] = np.array(numbers.floats, np.float32), []
    return values


def stand_in(source: Model, values: Mapping[str, Typed], metadata: Mapping[str, str]) -> Model:
    """Return a model of new values and metadata alone, of which the writer can make the file again."""
    proto = onnx.ModelProto()
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    for name, (array, kind) in values.items():
        code, *dims = kind or [code_of(array.dtype), *array.shape]
        proto.graph.initializer.add(name=name, data_type=code, dims=dims, raw_data=array.tobytes())
    for key, node, numbers in _attributes(source):
        if key in values:
            stub = proto.graph.node.add(op_type=node.op_type, name=node.name, input=node.input)
            stub.attribute.add(name=numbers.name, type=numbers.type, floats=values[key][0].tolist())
    return Model(proto, "", source.path)


def _same(source: Model, old: onnx.TensorProto, file: Model, new: onnx.TensorProto) -> bool:
    if (old.data_type, list(old.dims)) != (new.data_type, list(new.dims)):
        return False
    return content_digest(source, old) == content_digest(file, new) and _plain(old) == _plain(new)


def _plain(tensor: onnx.TensorProto) -> list[Any]:
    """Return values that are stored as numbers and not as bytes."""
    return [*tensor.float_data, *tensor.int32_data, *tensor.int64_data, *tensor.double_data, *tensor.uint64_data]


def _attributes(model: Model) -> Iterator[tuple[str, onnx.NodeProto, onnx.AttributeProto]]:
    """Yield the attributes that hold a list of numbers, with their nodes, and a key of both."""
    for node in model.proto.graph.node:
        for attribute in node.attribute:
            if attribute.floats:
                yield f"{node.op_type}:{node.name}({','.join(node.input)}):{attribute.name}", node, attribute
