"""The data of `compare`: opened once for all models that read them in the same way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import InputSpec, Source
from tna_onnx.data.options import Data
from tna_onnx.data.source import require_samples
from tna_onnx.errors import DataError
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput

__all__ = ["ComparedSamples"]


class ComparedSamples:
    """The data as each model reads them, and the check that these are the same samples."""

    def __init__(self, data: Data, bins: int) -> None:
        self.data = data
        self._bins = bins
        self._opened: dict[tuple[tuple[InputSpec, ...], tuple[str, ...] | None, bool, bool], Source] = {}

    def open(
        self, model: Model, inputs: tuple[InputSpec, ...], output: ClassOutput, names: tuple[str, ...] | None
    ) -> Source:
        """Open the data for a model, or return what was opened for one with the same inputs and class names.

        Raises:
            UsageError, DataError: see `Data.open`; or other samples than the first model's.
        """
        # what a source depends on: the inputs to fill and the numbers of the classes
        key = inputs, names, output.several, output.multi_label
        if key not in self._opened:
            source = self.data.open(
                inputs, output.n_classes, names, several=output.several, multi_label=output.multi_label
            )
            require_samples(source, self._bins)
            # differences are paired: row k must be the same sample in all models
            if self._opened and not _same_samples(source.labels, self._first.labels):
                raise DataError(
                    f"{model.name}: reads other samples than the first model ({len(source):,} and "
                    f"{len(self._first):,}, or with other labels); models with different inputs can only be compared "
                    "on data that come in the same order each time they are opened"
                )
            self._opened[key] = source
        return self._opened[key]

    @property
    def _first(self) -> Source:
        return next(iter(self._opened.values()))

    @property
    def description(self) -> str:
        """The samples in one line."""
        return self._first.describe()


def _same_samples(labels: NDArray[np.int64], first: NDArray[np.int64]) -> bool:
    """Whether two lists of labels are one, up to how the classes are numbered."""
    pairs = {*zip(labels.tolist(), first.tolist(), strict=False)}
    return len(labels) == len(first) and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
