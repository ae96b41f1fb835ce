"""Several predictions a sample, brought into rows right behind the network: all that follows sees (rows x numbers).

(N, T, C), (N, H, W, C)    classes last: rows in the order of the positions
(N, C, H, W)               classes first: the class axis goes last
(N, T)                     one number a position
(N T, C)                   rows already
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.positions import POSITIONS, SHAPE, PositionSource
from tna_onnx.errors import DataError
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, Layout
from tna_onnx.runtime import Session

# Logits that are compared where a sample has several predictions; a few float64 arrays of them are held.
_CHECKED = 2**22
_MIN_ROWS = 64


class PositionSession(Session):
    """A session whose tensors come as rows: those positions of its samples that a batch names.

    Args:
        whole: a session on the model.
        class_axis: where the classes are, if a tensor's shape leaves that open; 1 or -1.
        needed: tensors that have to have values for each position; others are returned as they are.
        name: of the model, for messages.
        wide: those of them that hold more than one number a position.

    Attributes:
        layouts: of the tensors that were run.
    """

    def __init__(
        self, whole: Session, class_axis: int, needed: Iterable[str], name: str, wide: Iterable[str] = ()
    ) -> None:
        self._whole = whole
        self._class_axis = class_axis
        self._needed = frozenset(needed)
        self._wide = frozenset(wide)
        self._name = name
        self.provider = whole.provider
        self.fallback = whole.fallback
        self.elsewhere = whole.elsewhere
        self.device = whole.device
        self.inputs = whole.inputs
        self.fixed_batch = whole.fixed_batch
        self.at_once = whole.at_once
        self.layouts: dict[str, Layout] = {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._whole.outputs

    def _compute(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run a batch of samples with their positions (`tna_onnx.data.positions`); return the rows that it names.

        Raises:
            DataError: as a session; or a needed tensor has other positions than the labels.
        """
        feeds = dict(feeds)
        places = feeds.pop(POSITIONS)
        shape = tuple(feeds.pop(SHAPE).tolist())
        samples = len(next(iter(feeds.values())))
        values = self._whole.run(outputs, feeds)
        return [self._rows(name, each, samples, shape, places) for name, each in zip(outputs, values, strict=True)]

    def in_rows(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a batch as rows, where they have the positions: a head may read an input."""
        shape = tuple(batch[SHAPE].tolist())
        samples = len(next(array for name, array in batch.items() if name not in (POSITIONS, SHAPE)))
        places = batch[POSITIONS]
        own = (POSITIONS, SHAPE)
        return {
            name: each if name in own else self._rows(name, each, samples, shape, places)
            for name, each in batch.items()
        }

    def _rows(
        self, name: str, values: NDArray[Any], samples: int, shape: tuple[int, ...], places: NDArray[np.int64]
    ) -> NDArray[Any]:
        layout = layout_of(values.shape, samples, shape, self._class_axis)
        if layout is None or (layout.class_axis == 0 and name in self._wide):
            if name not in self._needed:
                return values
            raise DataError(
                f"{self._name}: '{name}' has shape {values.shape} for {samples} samples, and their labels have shape "
                f"{(samples, *shape)}; expected a label for each position of '{name}'"
            )
        self.layouts[name] = layout
        return rows_of(values, layout)[places]


def batch_in_rows(session: Session | None, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a new batch whose arrays are rows, if those of the session are; else a copy."""
    if isinstance(session, PositionSession):
        return session.in_rows(batch)
    return dict(batch)


def sample_shape(session: Session | None, tensor: str, values: NDArray[Any]) -> tuple[int, ...] | Layout:
    """Return the shape that one sample has in a tensor which was run; the layout, if it has several predictions."""
    if isinstance(session, PositionSession):
        return session.layouts[tensor]
    return values.shape[1:]


def first_rows(n_classes: int, source: Source, batch_size: int) -> NDArray[np.int64] | None:
    """Return rows of the samples of the first batch, where these may have too many to compare; None for all of them."""
    if not isinstance(source, PositionSource):
        return None
    return source.first_rows(batch_size, max(_MIN_ROWS, _CHECKED // n_classes))


def layout_of(values: tuple[int, ...], samples: int, positions: tuple[int, ...], class_axis: int) -> Layout | None:
    """Return how a tensor of a shape holds its positions; None if it has others.

    Args:
        values: shape of the tensor.
        samples: number of samples in it.
        positions: number of positions of a sample along each axis.
        class_axis: decides where both could be the class axis.

    >>> layout_of((8, 5, 32, 32), 8, (32, 32), -1).class_axis
    1
    """
    axes = len(positions) + 2
    if values == (samples, *positions):
        return Layout(axes - 1, 0)
    first = len(values) == axes and values[0] == samples and values[2:] == positions
    last = len(values) == axes and values[:-1] == (samples, *positions)
    if first and (class_axis == CLASSES_FIRST or not last):
        return Layout(axes, CLASSES_FIRST)
    if last:
        return Layout(axes, CLASSES_LAST)
    if len(values) == 2 and values[0] == samples * math.prod(positions):
        return Layout(2, CLASSES_LAST)
    return None


def rows_of(values: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return all positions of a tensor as rows, (N P, C), or (N P,) of one number a position."""
    if layout.class_axis == 0:
        return values.reshape(-1)
    if layout.class_axis == CLASSES_FIRST:
        values = np.moveaxis(values, 1, -1)
    return values.reshape(-1, values.shape[-1])
