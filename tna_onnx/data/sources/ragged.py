"""Token ids in lists of different lengths, for a model that takes an attention mask: padded, and masked where padded.

Inputs are told by their names, as in `tokens`. The mask may be a column too; without one it is made of the lengths of
the lists. The id at padded places is 0, which a model with a mask does not look at. Without a mask nothing is padded:
which id the model takes for padding is not known then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.sources.tokens import roles_of
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tna_onnx.data.request import Request
    from tna_onnx.data.source import AnyArray, InputSpec
    from tna_onnx.data.sources.layout import Kind

__all__ = ["padded", "token_columns"]

_PADDING = 0


def token_columns(kinds: Mapping[str, Kind], request: Request) -> dict[str, str]:
    """Return the columns of token lists for each role, `ids` first; empty if samples are something else.

    Args:
        kinds: name of a column -> what it holds.
        request: what the model wants.
    """
    roles = roles_of(request)
    if request.tokenizer is not None or request.columns or "mask" not in roles.values():
        return {}
    found = {role: name for name, role in roles.items() if kinds.get(name) == "list"}
    missing = {role for role in roles.values() if role not in found}
    # the mask follows from the lengths; nothing else does
    if missing - {"mask"}:
        return {}
    return {"ids": found.pop("ids"), **found}


def padded(
    where: str, lists: Mapping[str, tuple[str, Sequence[Any]]], request: Request
) -> tuple[dict[str, AnyArray], str]:
    """Return the array (N, T) of each input, and a line for reports.

    Args:
        where: what messages start with.
        lists: role -> column and its cells.
        request: what the model wants.

    Raises:
        DataError: a cell is no list of integers, is longer than the model takes, or fits no id.
    """
    name, cells = lists["ids"]
    lengths = [_length(where, name, row, cell) for row, cell in enumerate(cells)]
    longest = max(lengths, default=0)
    fixed = next((spec.shape[1] for spec in request.inputs if spec.shape[1] is not None), None)
    if fixed is not None and longest > fixed:
        row = lengths.index(longest)
        raise DataError(
            f"{where}: column {name!r}: {longest} tokens in row {row}, and the model takes {fixed}; cut the lists as "
            "the model's tokenizer does"
        )
    width = fixed or longest
    masked = np.arange(width) < np.array(lengths)[:, None]
    arrays = {}
    for spec in request.inputs:
        role = roles_of(request)[spec.name]
        if role not in lists:
            arrays[spec.name] = masked.astype(spec.dtype)
            continue
        arrays[spec.name] = _filled(where, spec, lists[role], masked)
    made = "the mask covers that" if "mask" in lists else "the mask is made of the lengths of the lists"
    return arrays, f"lists of {name!r} padded with id {_PADDING} at their end to {width} tokens; {made}"


def _length(where: str, name: str, row: int, cell: Any) -> int:
    if cell is None or not hasattr(cell, "__len__") or isinstance(cell, str) or not len(cell):
        raise DataError(f"{where}: column {name!r}: expected a list of token ids in row {row}, found {cell!r:.60}")
    return len(cell)


def _filled(where: str, spec: InputSpec, column: tuple[str, Sequence[Any]], masked: AnyArray) -> AnyArray:
    """Put the cells of a column where `masked` is true."""
    name, cells = column
    array = np.full(masked.shape, _PADDING, spec.dtype)
    for row, cell in enumerate(cells):
        values = np.asarray(cell)
        length = int(masked[row].sum())
        if values.dtype.kind not in "iu" or values.shape != (length,):
            raise DataError(
                f"{where}: column {name!r}: expected a list of {length} integers in row {row}, as many as there are "
                f"ids, found {cell!r:.60}"
            )
        array[row, :length] = values
        if not np.array_equal(array[row, :length], values):
            raise DataError(f"{where}: column {name!r}: row {row} does not fit into {spec.dtype}, the input's dtype")
    return array
