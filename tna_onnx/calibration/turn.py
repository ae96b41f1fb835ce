"""One head's turn, where several heads of a model are recalibrated into one file.

Each turn reads the file that the one before has made. Turns share the features, where heads read the same ones. In the
file, each head has metadata and nodes of its own, which the graph output tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.task import Collected, Task
from tna_onnx.data import Batch, Source
from tna_onnx.data.positions import POSITIONS, SHAPE, PositionSource
from tna_onnx.errors import CheckFailed, UsageError
from tna_onnx.extraction.given import Samples
from tna_onnx.extraction.sessions import open_model
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.floats import epsilon
from tna_onnx.graph.own_names import block_of, head_entries, provenance
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.runtime import Session, open_session

__all__ = ["Tables", "Turn"]

# Samples on which the other heads are compared; fewer, where their outputs (scores of each pixel, say) take this many
# bytes.
_SAMPLES = 512
_KEPT = 2**28
# Their nodes are the same, and in the same order; a runtime may fuse them otherwise beside new neighbours.
_ROUNDINGS = 16


@dataclass(eq=False)
class Tables:
    """Features that a turn has collected, for the turns after it."""

    _kept: list[tuple[tuple[object, ...], NDArray[np.uint64], FeatureTable]] = field(default_factory=list)

    def collected(
        self, readout: Readout, samples: Samples, digests: NDArray[np.uint64], run: Callable[[], FeatureTable]
    ) -> FeatureTable:
        """Return the table of some samples with their labels: one that is here already, or a new one.

        Args:
            readout: what is collected.
            samples: the samples, with the labels of this turn.
            digests: of the samples, (N,); equal ones are the same samples in the same order.
            run: collects them.
        """
        key = _key(readout, samples.source)
        for known, of, table in self._kept:
            if key is not None and key == known and np.array_equal(digests, of):
                # the logits are those of the head that the table was collected for
                return replace(table, labels=samples.source.labels, logits=None)
        table = run()
        if key is not None:
            self._kept.append((key, digests, table))
        return table


def _key(readout: Readout, source: Source) -> tuple[object, ...] | None:
    """Say which features are collected; None where the table holds more than those."""
    if not isinstance(readout, Head) or not readout.linear:
        return None
    # another head may have labels at other positions: its rows are others
    rows = None
    if isinstance(source, PositionSource):
        rows = (source.owner.tobytes(), None if source.flat is None else source.flat.tobytes())
    return (readout.features, readout.features_transposed, readout.n_features, rows)


@dataclass(frozen=True, eq=False)
class Turn:
    """The turn of one head.

    Attributes:
        output: graph output of the head; it names the labels, the nodes and the metadata.
        others: graph outputs of the other heads.
        source_sha256: SHA-256 of the model before the first turn.
        tables: what earlier turns have collected.
        source_key: of that model in stores of features (`model_key`); None where none are kept.
    """

    output: str
    others: tuple[str, ...]
    source_sha256: str
    tables: Tables
    source_key: Mapping[str, Any] | None = None

    @property
    def block(self) -> str:
        """How names of the nodes that this turn adds begin."""
        return block_of(self.output)

    def entries(self, own: Mapping[str, str], task: Task) -> dict[str, str]:
        """Return all metadata of the file: those of earlier turns, and of this one."""
        told = {**own, "source_sha256": self.source_sha256}
        return {**provenance(task.model), **head_entries(told, self.output)}

    def require_data(self, samples: Samples) -> None:
        """Refuse samples that enter behind the trunk.

        Raises:
            UsageError: they hold features or logits.
        """
        if samples.given:
            raise UsageError(
                f"{samples.source.describe()}: holds features or logits of one head; several heads need the data for "
                "the model's inputs"
            )

    def check_others(self, task: Task, path: Path, checked: Collected) -> None:
        """Run both files on some samples, one after the other: the other heads must give what they gave.

        Raises:
            CheckFailed: one gives something else.
        """
        old = self._other_outputs(lambda: open_model(task.model, task.device), task.batch_size, checked)
        new = self._other_outputs(lambda: open_session(path, path.name, task.device), task.batch_size, checked)
        for before, after in zip(old, new, strict=True):
            for name in self.others:
                _compare(self.output, name, before[name], after[name])

    def _other_outputs(self, open_file: Callable[[], Session], batch_size: int, checked: Collected) -> list[Batch]:
        """Return what a file gives for the other heads, batch by batch; its session is gone afterwards."""
        session = open_file()
        rows = np.arange(min(_SAMPLES, len(checked.source)), dtype=np.int64)
        kept: list[Batch] = []
        for batch in checked.source.batches(batch_size, rows):
            # whole samples, whatever of their positions has a label
            feeds = {name: array for name, array in batch.items() if name not in (POSITIONS, SHAPE)}
            kept.append(dict(zip(self.others, session.run(list(self.others), feeds), strict=True)))
            if sum(array.nbytes for outputs in kept for array in outputs.values()) >= _KEPT:
                break
        return kept


def _compare(output: str, name: str, before: NDArray[Any], after: NDArray[Any]) -> None:
    """Compare an output of another head before and after the turn of one.

    Raises:
        CheckFailed: it gives something else.
    """
    size = _ROUNDINGS * epsilon(before.dtype.name) * max(1.0, float(np.max(np.abs(before), initial=0)))
    largest = float(np.max(np.abs(after - before), initial=0))
    if not largest <= size:
        raise CheckFailed(
            f"verification: recalibrating '{output}' moves output '{name}' by up to {largest:.3g}; the two heads are "
            "not independent, calibrate only one of them"
        )
