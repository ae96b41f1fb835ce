"""How far a probability moves when an integer head is brought into QDQ form, on the first batch of real data."""

from __future__ import annotations

import numpy as np

from tna_onnx.data import Source
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.positions import first_rows
from tna_onnx.extraction.sessions import OpenModel, in_rows, open_part
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import output_of

__all__ = ["opened_notes", "unchecked_notes"]

# Integers are added up without rounding, floats are not: a score may fall to the other side of a step. Operators that
# quantise their data inside, as MatMulNBits may, differ by that as well. A wrong weight is off by far more.
_MAX_MOVED = 0.2
_MAX_MEAN_MOVED = 0.02


def opened_notes(opened: OpenModel, source: Source, batch_size: int) -> tuple[str, ...]:
    """Compare the model with its opened form; nothing to say if there is none.

    Raises:
        UnsupportedModel: the two do not compute the same.
    """
    model = opened.model
    closed = model.closed
    output = output_of(opened.readout)
    if closed is None:
        return ()
    session = in_rows(open_part(closed, cut_at(closed, [output.name]), opened.device), output, closed.name)
    batch = next(source.batches(batch_size, first_rows(opened.readout, source)))
    before = output.probabilities(session.run([output.name], batch)[0])
    after = output.probabilities(opened.session.run([output.name], batch)[0])
    moved = np.max(np.abs(before - after), axis=1)
    named = _named(model)
    if np.max(moved) > _MAX_MOVED or np.mean(moved) > _MAX_MEAN_MOVED:
        raise UnsupportedModel(
            f"{model.name}: in QDQ form {named} gives other probabilities, off by up to {np.max(moved):.2g} and "
            f"{np.mean(moved):.2g} on average; fit a map on the logits: --search none --output-kind logits"
        )
    return (
        f"the head computes with integers: {named}. It was searched in QDQ form, which moves a probability by at most "
        f"{np.max(moved):.2g}, on {len(moved)} samples",
    )


def unchecked_notes(opened: OpenModel) -> tuple[str, ...]:
    """Say that the two forms were not compared, because the samples enter behind the model's inputs."""
    if opened.model.closed is None:
        return ()
    return (
        f"the head computes with integers: {_named(opened.model)}. It was searched in QDQ form; the two were not "
        "compared here, since the samples hold features. `tna-onnx features`, and data for the model's inputs, compare "
        "them",
    )


def _named(model: Model) -> str:
    return ", ".join(f"{label} ({kind})" for label, kind in model.opened.items())
