"""What the graph can hold, and how a result is written: decided here, asked once.

A result is a weight and a map. The weight replaces the head's. The map goes one of two ways:

- folded: multiplied into weight and bias, where nothing reads the scores in front of the bias (`ts`);
- appended: standard nodes behind the logits, where the opset has them and every reader can see the new scores.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tna_onnx.calibration.strategy import Outcome
from tna_onnx.calibration.task import Task
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.nodes import NodeOps, can_append
from tna_onnx.graph.readers import can_insert, can_scale
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import Folding

__all__ = ["Writing"]


@dataclass(frozen=True, eq=False)
class Writing:
    """How results of a task can be written.

    Attributes:
        task: what was opened.
        fold: whether the user wants maps in weight and bias, where that is possible.
    """

    task: Task
    fold: bool

    @functools.cached_property
    def maps(self) -> tuple[str, ...]:
        """Maps that the graph can hold, `none` among them: new nodes need its opset, some read plain features."""
        readout = self.task.readout
        if not can_append(readout.logits_type, self.task.model.opset):
            return tuple(name for name in self._all if name == "none" or self._folds_by_force(name))
        plain = self.task.probed.plain_features
        return tuple(name for name in self._all if plain or not _reads_features(name))

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:
        """Those of the maps that can be written so that no one reads the scores in front of them."""
        return tuple(name for name in self.maps if name == "none" or self._folds(name) or self._inserts(name))

    def require(self, name: str) -> None:
        """Refuse a map that the graph cannot hold, and say why; `auto` is always fine.

        Raises:
            UnsupportedModel: the graph cannot hold it.
        """
        # `auto` takes from `choices`, all of which can be written
        if name == "auto" or name in self.maps:
            return
        task = self.task
        if name not in self._all:
            raise UnsupportedModel(
                f"{task.model.name}: map {name} is for two classes, and this model has {task.readout.n_classes}; "
                "use --map bias, svs or sms, which do the same for any number"
            )
        NodeOps(task.readout.logits_type, task.model.opset)  # raises, if that is the reason
        what = "the features of a linear head"
        if task.head:
            what = f"the features '{task.head.features}'"
        raise UnsupportedModel(
            f"{task.model.name}: map {name} reads {what} in the graph and expects (N, n) in the dtype of the logits; "
            "choose another --map"
        )

    def folding(self, outcome: Outcome) -> Folding | None:
        """Return what the fitted map does to weight and bias; None if it is appended, or there is none."""
        head = self.task.head
        # folded only where nothing reads the scores in front of the bias
        if outcome.fitted is None or not self.fold or head is None or not can_scale(self.task.model, head):
            return None
        # a quantised weight that stays as it is keeps its integers
        if head.stored_weight.quantized is not None and outcome.chosen.angle == 0:
            return None
        return outcome.fitted.folded()

    def write(self, outcome: Outcome, metadata: Mapping[str, str]) -> Rewritten:
        """Return the new model: weight, map and provenance.

        Raises:
            UnsupportedModel: a new value does not fit the stored dtype, or the map does not fit the graph.
        """
        task = self.task
        folding = self.folding(outcome)
        factor = 1.0
        write_map = None
        if folding is not None:
            factor = folding.factor or 1.0
        # the formula that was fitted writes its own nodes (law 3 of `maps.base`)
        elif outcome.fitted is not None:
            write_map = outcome.fitted.forward
        return rewrite(
            task.model,
            task.readout,
            _new_weight(outcome, folding),
            bias_factor=factor,
            write_map=write_map,
            keeps_order=_keeps_order(outcome.map),
            logits_shape=task.probed.logits_shape,
            metadata=metadata,
        )

    @property
    def _all(self) -> tuple[str, ...]:
        """All maps for so many classes."""
        return tuple(name for name in ("none", *MAPS) if self.task.readout.n_classes == 2 or not _is_binary(name))

    def _folds_by_force(self, name: str) -> bool:
        """Whether a map can be folded where nothing can be appended."""
        head = self.task.head
        return MAPS[name].foldable and head is not None and head.homogeneous

    def _folds(self, name: str) -> bool:
        head = self.task.head
        return self.fold and MAPS[name].foldable and head is not None and can_scale(self.task.model, head)

    def _inserts(self, name: str) -> bool:
        return can_insert(self.task.model, self.task.readout, keeps_order=_keeps_order(name))


def _reads_features(name: str) -> bool:
    return name != "none" and MAPS[name].needs_features


def _is_binary(name: str) -> bool:
    return name != "none" and MAPS[name].binary


def _keeps_order(name: str) -> bool:
    return name == "none" or MAPS[name].keeps_order


def _new_weight(outcome: Outcome, folding: Folding | None) -> NDArray[Any] | None:
    """Return the weight that goes into the file; None if it stays as it is, to the bit."""
    if outcome.weight is None:
        return None
    if folding is not None:
        return folding.weight(outcome.weight)
    # the original weight: its stored bytes stay as they are
    return None if outcome.chosen.angle == 0 else outcome.weight
