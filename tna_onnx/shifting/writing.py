"""A change of logits by one number a class, written into a model: into the bias of the head, else as nodes.

s' = s + d changes the bias alone, where the head has one a class, in float, and nothing reads the scores in front of
it. Elsewhere one Add goes behind the logits; where the graph has probabilities only, log p + d and a Softmax.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.written import check_file
from tna_onnx.data import Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import CheckFailed, UnsupportedModel
from tna_onnx.extraction.head_check import Probed
from tna_onnx.graph.floats import epsilon
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, NodeOps
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.own_names import PRIOR_BLOCK
from tna_onnx.graph.readers import can_scale
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten, rewrite

__all__ = ["check_result", "shifted", "write"]

FloatArray = NDArray[np.float64]

# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_MAX_BOUND = 0.05


def shifted(probabilities: NDArray[np.floating], change: FloatArray) -> FloatArray:
    """Return (N, C) probabilities after logits have changed by (C,) numbers."""
    weighted: FloatArray = probabilities * np.exp(change - change.max())
    weighted /= weighted.sum(axis=1, keepdims=True)
    return weighted


def write(model: Model, probed: Probed, change: FloatArray, metadata: dict[str, str]) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`.

    Args:
        model: the source.
        probed: where its logits are.
        change: (C,) what is added to them.
        metadata: all of this tool's entries.

    Raises:
        UnsupportedModel: the graph has no place for the change.
    """
    readout = probed.readout
    if isinstance(readout, Head) and _holds(model, readout, probed):
        bias = readout.anchored(readout.bias + np.asarray(change, readout.working_type))
        return rewrite(model, readout, None, bias=bias, metadata=metadata), "bias"
    try:
        written = rewrite(
            model,
            readout,
            None,
            write_map=functools.partial(_add, change),
            keeps_order=False,
            logits_shape=probed.logits_shape,
            block=PRIOR_BLOCK if _has_map(model) else PREFIX,
            metadata=metadata,
        )
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = str(error).split("; use --map")[0]
        raise UnsupportedModel(f"{reason}; shift the class frequencies in the program instead") from error
    return written, "nodes"


def _holds(model: Model, head: Head, probed: Probed) -> bool:
    """Whether a change of the bias is that of the logits, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def _has_map(model: Model) -> bool:
    return any(name.startswith(f"{PREFIX}/") for name in model.producers)


def _add(change: FloatArray, op: NodeOps, logits: str, features: str) -> str:  # noqa: ARG001 - as every map is called
    return op.add(logits, op.const(change))


def check_result(
    model: Model,
    rewritten: Rewritten,
    path: Path,
    session: Runs,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    expected: NDArray[Any],
) -> float:
    """Hold the written file against the source and the formula; return the largest difference of a probability.

    Args:
        model: the source.
        rewritten: what was meant.
        path: the file.
        session: on the file.
        output: the output that classifies.
        source: samples.
        batch_size: samples per run.
        expected: (R, C) probabilities of the first R of them.

    Raises:
        CheckFailed: the file differs in something else, or a probability is off by more than rounding.
    """
    check_file(model, rewritten, path)
    rows = np.arange(len(expected), dtype=np.int64)
    batches = source.batches(batch_size, rows)
    actual = output.probabilities(np.concatenate([session.run([output.name], batch)[0] for batch in batches]))
    largest = float(np.max(np.abs(actual - expected), initial=0))
    readout = rewritten.readout
    bound = min(_MAX_BOUND, _ROUNDINGS * epsilon(readout.logits_type)) + readout.output_step + 2 * readout.slack
    if not largest <= bound:
        raise CheckFailed(
            f"verification: the written file gives a probability that is {largest:.3g} off the formula; expected at "
            f"most {bound:.3g}"
        )
    return largest
