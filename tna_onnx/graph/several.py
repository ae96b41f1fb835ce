"""Several predictions a sample: one for each token, pixel or other position, and where their classes lie.

    classes last     (N, T, C), (N, H, W, C): tokens; images of TensorFlow
    classes first    (N, C, H, W): images, behind a convolution

What is declared tells such a tensor from one prediction a sample, (N, C). A convolution's (N, C, 1, 1) and the
(N, 1, C) of a sequence of one hold one prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tna_onnx.graph.load import Model

ONE = 0
"""In place of a class axis: one prediction a sample."""

OPEN_AXIS = (
    "neither the nodes nor the shape tell which axis holds the classes, since all are as long; export the model with "
    "another number of positions, or with one that is left open (a dynamic axis)"
)
"""Why an output of several predictions is refused."""

CLASSES_FIRST = 1
CLASSES_LAST = -1


@dataclass(frozen=True)
class Layout:
    """How a tensor holds several predictions a sample, as a run showed it.

    Attributes:
        axes: number of axes, the samples' included.
        class_axis: 1 or -1; 0 where each position has one number, without an axis for it.
    """

    axes: int
    class_axis: int


def declared_sizes(model: Model, tensor: str) -> list[int | None] | None:
    """Return the declared lengths of a tensor's axes, None for any; None where no shape is declared."""
    graph = model.proto.graph
    for info in (*graph.output, *graph.value_info):
        if info.name == tensor and info.type.tensor_type.HasField("shape"):
            return lengths_of(info)
    return None


def lengths_of(info: onnx.ValueInfoProto) -> list[int | None]:
    """Return the declared lengths of the axes of a tensor with a shape, None for any."""
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in info.type.tensor_type.shape.dim]


def has_several(sizes: list[int | None] | None) -> bool:
    """Whether lengths of axes are those of several predictions a sample."""
    if sizes is None or len(sizes) < 3:
        return False
    return any(size != 1 for size in sizes[1:-1]) and any(size != 1 for size in sizes[2:])


def class_axis_of(sizes: list[int | None]) -> int:
    """Return the class axis of a tensor of several predictions, where its nodes do not tell it; 0 if it stays open.

    A model declares how many classes it has, and may leave the number of positions open. Where it declares both, custom
    decides: of tokens (three axes) the last, of images (four and more) the first behind the samples. Where all lengths
    are equal, labels of the other kind would fit as well, and nothing would notice.
    """
    declared = [axis for axis in (CLASSES_FIRST, CLASSES_LAST) if sizes[axis] is not None]
    if len(declared) == 1:
        return declared[0]
    if declared and len(set(sizes[1:])) == 1:
        return ONE
    if len(sizes) == 3:
        return CLASSES_LAST
    return CLASSES_FIRST
