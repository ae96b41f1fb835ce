"""Which tensors of a batch a feature table keeps, which of them a session has to compute, and what they may hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.errors import DataError
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.cut import read_beside
from tna_onnx.graph.readout import Head, Readout

__all__ = ["Tensors", "require_finite"]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a batch that are kept.

    Attributes:
        main: the features, or the logits of a model without a head.
        beside: what else of the data the nodes after the features read.
        logits: the logits, if they are kept beside the features in a store.
        computed: those of them that the session has to give.
    """

    main: str
    beside: tuple[str, ...]
    logits: str | None
    computed: tuple[str, ...]

    @classmethod
    def of(cls, opened: OpenModel, readout: Readout, given: Collection[str], *, keep_logits: bool) -> Tensors:
        """Choose the tensors for a readout; `given` ones are not computed."""
        main = readout.logits
        beside: tuple[str, ...] = ()
        if isinstance(readout, Head):
            main = readout.features
            # logits of a linear head are arithmetic on the features alone
            if not readout.linear:
                beside = tuple(read_beside(opened.model, readout))
        logits = readout.logits if keep_logits else None
        names = [main, *beside]
        if logits is not None:
            names.append(logits)
        computed = tuple(name for name in opened.computed(names) if name not in given)
        return cls(main, beside, logits, computed)


def require_finite(source: Source, name: str, values: NDArray[Any], start: int) -> None:
    """Refuse rows of a tensor with NaN or infinite values.

    Args:
        source: the samples, for the message.
        name: of the tensor, for the message.
        values: its rows.
        start: sample of the first one.

    Raises:
        DataError: there are such.
    """
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        row = start + int(np.flatnonzero(bad)[0])
        raise DataError(f"{source.describe()}: {name} of sample {row} hold NaN or infinite values")
