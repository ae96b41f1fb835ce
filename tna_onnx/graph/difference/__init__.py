"""Two models -> everything in which they differ: for `verify`, for the report, and for the check of a written file.

All fields of both protobufs are compared. How strictly is for the caller to say:

- by content (`differences`): an empty field is the same as none, and tensors are the same if their type, shape and
  bytes are, wherever the bytes lie: in the field of their type, as raw data, or in external files, which are read in
  blocks. Each difference is explained if a recalibration makes it (see `difference.explained`).
- as encoded (`unexpected_differences`): every byte counts, but for the place of external data, which are not read.
"""

from tna_onnx.graph.difference.compare import differences, head_differences
from tna_onnx.graph.difference.unexpected import unexpected_differences
from tna_onnx.graph.difference.values import Difference

__all__ = ["Difference", "differences", "head_differences", "unexpected_differences"]
