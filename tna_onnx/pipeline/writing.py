"""How a result is written: its weight replaces the head's, and its map is folded or appended.

A map is folded into weight and bias where nothing reads the scores in front of the bias; else standard nodes follow the
logits, where the opset has them. `provenance_entries` are the metadata, without the prefix `tna_onnx.`.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx import __version__
from tna_onnx.data.digest import sketch_of
from tna_onnx.data.several import PositionSource
from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import can_append, free_block, map_opset, merged_provenance, too_old
from tna_onnx.graph.readers import UNCHANGED, LabelOutput, OutputChange, can_insert, can_scale, computed_from
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps import CLAMPED, MAPS, is_map_of, maps_of
from tna_onnx.maps.base import CalibrationMap, Folding, apply_map
from tna_onnx.maps.clamp import can_clamp
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.prior_shift import Observed, invertible
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference, projections
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.pipeline.other_outputs import OtherOutputs, find_others
from tna_onnx.pipeline.record import Change, can_recompute, write_change
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.runtime import CUDA, runtime_version


@dataclass(frozen=True, eq=False)
class Shipped:
    """What a written file computes for some samples: logits, and the map that is not in them yet."""

    # the logits, or what makes them: a folded weight is a large one of its own, which can wait
    source: Logits | Callable[[], Logits]
    fitted: CalibrationMap | None  # the map
    other_outputs: OutputChange = UNCHANGED  # what was done about other outputs

    @functools.cached_property
    def logits(self) -> Logits:
        """The logits."""
        if isinstance(self.source, Logits):
            return self.source
        return self.source()


@dataclass(frozen=True, eq=False)
class Writing:
    """How results of a task can be written."""

    task: Task  # what was opened

    @functools.cached_property
    def maps(self) -> tuple[str, ...]:
        """Maps that the graph can hold, `none` first: new nodes need its opset, some read plain features."""
        readout = self.task.readout
        return ("none", *filter(self._is_held, maps_of(readout.n_classes, labels=readout.multi_label)))

    def _is_held(self, name: str) -> bool:
        if self._is_too_wide(name):
            return False
        if not self._appends:
            return self._folds(name)
        return self.task.probed.plain_features or not MAPS[name].needs_features or self._always_folds(name)

    def _is_too_wide(self, name: str) -> bool:
        return MAPS[name].wide_range and self.task.readout.logits_type == "float16"

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:
        """The maps that `auto` may choose, `none` first: written so that no other node reads scores before the map.

        Without those that would take minutes to fit for so many classes, and of two classes without those that are
        Platt's function in other numbers.
        """
        names = tuple(filter(self._is_choice, self.maps[1:]))
        if "platt" in names:
            names = tuple(name for name in names if not MAPS[name].platt_of_two)
        return ("none", *names)

    @functools.cached_property
    def clamps(self) -> tuple[str, ...]:
        """The maps on logits that `auto` may choose with predictions kept."""
        if not can_clamp(self.task.readout.n_classes, self.task.readout.logits_type):
            return ()
        free = (name for name in self.choices[1:] if not (MAPS[name].keeps_order or MAPS[name].needs_features))
        return tuple(name for name in free if self._is_held(CLAMPED + name) and self._is_choice(CLAMPED + name))

    def _is_choice(self, name: str) -> bool:
        kind = MAPS[name]
        if kind.max_classes_of_auto is not None and self.task.readout.n_classes > kind.max_classes_of_auto:
            return False
        if (self.task.teacher is not None and not kind.soft) or (self._weighted and not kind.weighted):
            return False
        # what folds into a new weight only may have to be nodes in the end, where the weight stays as it is
        if not (self._always_folds(name) or self._inserts(name)):
            return False
        return not self._contradicted(name)

    @functools.cached_property
    def _others(self) -> OtherOutputs:
        task = self.task
        source = None if task.calibration.samples.given else task.calibration.source
        return find_others(task.model, task.readout, task.opened.output, task.device, source, task.batch_size)

    @property
    def labels(self) -> tuple[LabelOutput, ...]:
        """The outputs that hold the class of each sample."""
        return self._others.labels

    @property
    def _tilts(self) -> bool:
        """Whether the weight is tilted by request: whatever is computed from the scores follows it."""
        return self.task.settings.resolved_search not in ("auto", "none")

    @property
    def keeps_labels(self) -> bool:
        """Whether the label is the model's own decision, and stays it whatever becomes of the probabilities."""
        return self.task.settings.predictions != "change" and not self._tilts and bool(self.labels)

    @property
    def predictions_are_free(self) -> bool:
        """Whether predictions may change: callers have a threshold of their own, or labels an output of theirs."""
        return self.task.settings.predictions == "auto" and (self.keeps_labels or self.task.has_own_threshold)

    @property
    def kept(self) -> tuple[str, ...]:
        """What else is computed from the scores, and stays."""
        return () if self._tilts else self._others.rest

    def _contradicted(self, name: str) -> str:
        """Return the label output that neither follows a map, nor can be made to, where it should; else nothing."""
        if _keeps_order(name) or self.keeps_labels or self._folds(name):
            return ""
        return next((label.name for label in self._not_following if not label.classes), "")

    @functools.cached_property
    def _not_following(self) -> tuple[LabelOutput, ...]:
        """The label outputs that are not computed from the logits."""
        task = self.task
        return tuple(label for label in self.labels if not computed_from(task.model, label.name, task.readout.logits))

    def other_outputs(self, name: str) -> OutputChange:
        """Return what is done about other outputs where a map is appended."""
        moved = self._not_following
        if _keeps_order(name):
            # what is the likeliest class stays it; an SVM's own decision need not have been
            change = self.task.settings.predictions == "change" and name != "none"
            moved = tuple(label for label in moved if change and label.classes and not label.first)
        elif self.keeps_labels:
            return OutputChange((*self.kept, *(label.name for label in self.labels)))
        return OutputChange(self.kept, tuple(label.name for label in moved), moved[0].classes if moved else ())

    @property
    def _weighted(self) -> bool:
        return self.task.calibration.table.weights is not None

    def require(self, name: str) -> None:
        """Refuse a map that the graph cannot hold, and say why; `auto` is always fine."""
        # `auto` takes from `choices`, all of which can be written
        if name in ("auto", "none"):
            return
        task = self.task
        if task.teacher is not None and not MAPS[name].soft:
            soft = ", ".join(fit for fit in self.maps[1:] if MAPS[fit].soft)
            raise UnsupportedModel(f"map {name} needs labels, and a teacher gives probabilities; use --map {soft}")
        if self._weighted and not MAPS[name].weighted:
            weighted = ", ".join(fit for fit in self.maps[1:] if MAPS[fit].weighted)
            raise UnsupportedModel(f"map {name} cannot be fitted with sample weights; use --map {weighted}")
        fits = is_map_of(name, task.readout.n_classes, labels=task.readout.multi_label)
        if fits and self._is_held(name):
            if label := self._contradicted(name):
                raise UnsupportedModel(
                    f"{task.model.name}: output '{label}' gives the labels, and the graph does not tell what it calls "
                    f"the classes, so it cannot follow map {name}; leave out --predictions change"
                )
            return
        if not fits:
            raise UnsupportedModel(f"{task.model.name}: map {name} {self._against(name)}")
        if self._is_too_wide(name):
            raise UnsupportedModel(
                f"{task.model.name}: map {name} has numbers that are too small for float16, the type of the logits; "
                "use --map isotonic"
            )
        if not self._appends:
            advice = ", or use --map ts, which needs no new nodes" if "ts" in self.maps else ""
            reason = too_old(task.readout.logits_type, map_opset(task.model))
            raise UnsupportedModel(f"{task.model.name}: {reason}{advice}")
        why = "reads the features of a linear head, and there is none whose weight is known (one in integers is not)"
        if task.head:
            why = f"reads the features '{task.head.features}' in the graph and expects one vector a sample, (N, n)"
        rest = ", ".join(other_map for other_map in self.choices[1:] if other_map != name)
        raise UnsupportedModel(f"{task.model.name}: map {name} {why}; use --map {rest}")

    def _against(self, name: str) -> str:
        """Return why a map does not fit the kind of the model, and which maps do."""
        classes = self.task.readout.n_classes
        if self.task.readout.multi_label:
            maps = ", ".join(maps_of(classes, labels=True))
            return f"is for one class a sample, and this model gives {classes} labels by themselves; use --map {maps}"
        if not MAPS[name].for_classes:
            return "is for several labels a sample, each with a Sigmoid of its own, and this model gives one class"
        return f"is for two classes, and this model has {classes}; use --map bias, svs or sms, which are for any number"

    def folding(self, outcome: Outcome) -> Folding | None:
        """Return what the fitted map does to weight and bias; None if it is appended, or there is none."""
        head = self.task.head
        if outcome.fitted is None or head is None or not self._folds(outcome.map):
            return None
        # a quantised weight that stays as it is keeps its integers
        if head.stored_weight.integers and outcome.chosen.angle == 0:
            return None
        return outcome.fitted.folded()

    def shipped(self, outcome: Outcome, on: Collected) -> Shipped:
        """Return what the written file computes for some samples."""
        task = self.task
        folding = self.folding(outcome)
        # behind a tail only the graph computes logits, without the map: a factor may be taken in or not, to rounding
        if folding is not None and task.probed.tail is None and outcome.weight is not None:
            return Shipped(functools.partial(task.new_logits, outcome.weight, folding, on), None)
        logits = outcome.logits
        if on is not task.calibration:
            logits = task.logits(outcome.weight, on)
        return Shipped(logits, outcome.fitted, self.other_outputs(outcome.map) if folding is None else UNCHANGED)

    def write(self, outcome: Outcome, metadata: Mapping[str, str]) -> Rewritten:
        """Return the new model: weight, map and provenance."""
        task = self.task
        folding = self.folding(outcome)
        maps: tuple[Any, ...] = ()
        other_outputs = UNCHANGED
        # the formula that was fitted writes its own nodes (law 3 of `maps.base`)
        if folding is None and outcome.fitted is not None:
            maps = (outcome.fitted,)
            other_outputs = self.other_outputs(outcome.map)
        change = Change(
            **self._placed(outcome, folding),
            maps=maps,
            shape=task.probed.logits_shape,
            block=free_block(task.model, task.readout.output),
            other_outputs=other_outputs,
        )
        # a model in memory gives another one
        return write_change(task.model, task.readout, change, metadata, aside=task.output is not None)

    def _placed(self, outcome: Outcome, folding: Folding | None) -> dict[str, Any]:
        """Return the fields of a `Change` for weight and bias; a weight that stays is none."""
        task = self.task
        if folding is None and (outcome.weight is None or outcome.chosen.angle == 0):
            return {}
        assert outcome.weight is not None  # noqa: S101 - a map folds into a head alone
        if folding is not None and outcome.weight is task.weight and can_recompute(folding):
            return {"folded": outcome.fitted}
        weight, bias, factor = task.new_numbers(outcome.weight, folding)
        return {"weight": weight, "bias": bias, "bias_factor": factor}

    @property
    def _appends(self) -> bool:
        """Whether the opset has the nodes of a map."""
        return can_append(self.task.readout.logits_type, map_opset(self.task.model))

    def _always_folds(self, name: str) -> bool:
        """Whether a map goes into weight and bias with the original weight too, so that no node reads the features."""
        head = self.task.head
        return head is not None and not head.stored_weight.integers and self._folds(name)

    def _folds(self, name: str) -> bool:
        """Whether a map can go into weight and bias: nothing reads the scores in front of the bias."""
        head, settings = self.task.head, self.task.settings
        if self.kept:
            return False
        # in front of a new weight, labels are those of the source
        if not _keeps_order(name) and self._labels_need_scores:
            return False
        if not settings.fold or not MAPS[name].foldable or head is None or not can_scale(self.task.model, head):
            return False
        # one factor on all logits passes whatever keeps ratios; a matrix, or a bias, needs plain logits
        if MAPS[name].scales:
            return True
        if not head.linear or self.task.probed.tail is not None:
            return False
        return head.holds_bias or self._inserts(name)

    @property
    def _labels_need_scores(self) -> bool:
        """Whether labels would be wrong if weight and bias held a map that changes which class is the likeliest."""
        if self.keeps_labels:
            return True
        head = self.task.head
        changed = set() if head is None else set(head.readers)
        return any(not changed & self.task.model.ancestors(label.name) for label in self.labels)

    def _inserts(self, name: str) -> bool:
        other_outputs = self.other_outputs(name)
        settled = _keeps_order(name) or self.keeps_labels or bool(other_outputs.classes)
        return self._appends and can_insert(
            self.task.model, self.task.readout, keeps_order=settled, kept=other_outputs.kept
        )


def _keeps_order(name: str) -> bool:
    # what is done to each label by itself keeps predictions, and not which label comes first
    return name == "none" or (MAPS[name].keeps_order and MAPS[name].for_classes)


# Settings that the metadata have, in this order.
_RECORDED = ("antithetic", "alpha", "beta", "theta_s", "objective", "n_t", "max_accuracy_drop", "bins", "seed")


def provenance_entries(writing: Writing, outcome: Outcome) -> dict[str, str]:
    """Return the metadata of the new file: what earlier runs have left, how it was made, and its reference."""
    task = writing.task
    entries = _run_entries(task, outcome) | _reference_entry(writing, outcome)
    return merged_provenance(task.model, task.readout.output, entries)


def _run_entries(task: Task, outcome: Outcome) -> dict[str, str]:
    """Return how the file was made; no time, no path: the same run writes the same bytes."""
    settings = task.settings
    recipe = task.source.recipe()
    entries: dict[str, object] = {
        "version": __version__,
        "method": outcome.label,
        "search": settings.resolved_search,
        "map": outcome.map,
        "angle_degrees": outcome.chosen.angle,
        # 0 stands for the limit of many; the file has the word of the command line
        "ensemble_size": outcome.chosen.ensemble_size or "inf",
        **{name: getattr(settings, name) for name in _RECORDED},
        **outcome.parameters,
        "source_sha256": task.model.sha256,
    }
    if task.teacher:
        entries["teacher_sha256"] = task.teacher.model.sha256
    entries |= {"calibration_sha256": task.source.digest(), "calibration_samples": len(task.source)}
    if isinstance(task.source, PositionSource):
        entries |= {"positions": "labelled", "position_samples": len(task.source.owners)}
    # a few digests of single samples: they tell these data in another order, and a part of them
    entries["calibration_sketch"] = sketch_of(task.source.sample_digests())
    entries["calibration_form"] = task.calibration.samples.form
    if recipe:
        entries["preprocessing"] = recipe
    fitted = outcome.fitted
    if fitted is not None and fitted.needs_features and fitted.folded() is None:
        advice = "quantise the source and calibrate the result: this map reads features as they are"
        entries["quantization"] = advice
    # on the CPU there is no choice of how products of float32 are rounded
    if task.provider == CUDA:
        entries["tf32"] = "as-deployed" if task.tf32 else "off"
    entries |= {**task.opened.output.provenance, "output_kind": task.opened.output.kind}
    # `metadata_props` hold texts only
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}


def versions() -> dict[str, str]:
    """Return the versions of what computed the numbers."""
    return {
        "tna-onnx": __version__,
        "onnx": version("onnx"),
        "onnxruntime": runtime_version(),
        "numpy": version("numpy"),
    }


_REFERENCE = "reference"

# More labelled samples make no interval narrower that matters.
_MOST_REFERENCE = 50_000


def _reference_entry(writing: Writing, outcome: Outcome) -> dict[str, str]:
    """Return the entry on the reference of the calibration, from what the written file computes for the report.

    It is empty where samples without labels could not be judged by it.
    """
    task = writing.task
    if not _is_usable(task, outcome) or (writing.keeps_labels and not outcome.keeps_predictions):
        return {}
    # `evaluate` asks the written file for the features, which a node has to compute
    tensor = ""
    if task.head is not None and task.head.features in task.model.producers:
        tensor = task.head.features
    rows = _independent_rows(task.reported.table.clusters, len(task.reported.table))
    parts: list[list[NDArray[Any]]] = []
    shipped = writing.shipped(outcome, task.reported)
    try:
        for logits, labels, z in shipped.logits.chunks(rows, features=True):
            mapped = to_host(apply_map(shipped.fitted, logits, z))
            columns: list[NDArray[Any]] = [task.readout.probabilities(mapped).astype(np.float32), np.asarray(labels)]
            if tensor:
                columns.append(projections(to_host(z)))
            parts.append(columns)
        p, y, *projected = (np.concatenate(values) for values in zip(*parts, strict=True))
        counts = np.bincount(y, minlength=p.shape[1])
        if counts.min() < LEAST or invertible(Observed(y, p, p, counts / len(y), counted=True), task.settings.seed):
            return {}
        return {_REFERENCE: Reference.fit(p, y, *projected, name=tensor).text()}
    except (DataError, np.linalg.LinAlgError):
        return {}


def _is_usable(task: Task, outcome: Outcome) -> bool:
    """Return whether the samples of the report are labelled, and as new to the map as others will be."""
    readout = task.readout
    fitted = outcome.fitted
    independent = not (readout.multi_label or isinstance(task.source, PositionSource))
    labelled = task.teacher is None and task.reported.table.weights is None
    # a map of many numbers looks better on the samples that it was fitted to than it is
    new = task.held_out is not None or fitted is None or MAPS[fitted.name].few_parameters
    return readout.n_classes <= MOST_CLASSES and independent and labelled and new


def _independent_rows(clusters: NDArray[np.int64] | None, n: int) -> NDArray[np.bool_]:
    """Return a mask of one sample of each cluster; of very many, of every so many."""
    rows = np.arange(n)
    if clusters is not None:
        rows = np.sort(np.unique(clusters, return_index=True)[1])
    mask = np.zeros(n, bool)
    mask[rows[:: -(-len(rows) // _MOST_REFERENCE)]] = True
    return mask


def read_reference(model: Model, output: str) -> Reference:
    """Return what a file records of the calibration of an output.

    Raises UnsupportedModel: nothing, or nothing that holds of the file as it is.
    """
    text = model.provenance_of(output).get(_REFERENCE)
    if text is None:
        raise UnsupportedModel(
            f"{model.name} records no reference of its calibration; give labels, or calibrate it, or its source "
            f"again, with --eval or --map bias, on {LEAST} samples or more of each class, one class a sample, "
            f"of at most {MOST_CLASSES} classes that the model tells apart"
        )
    if "shift" in model.provenance:
        raise UnsupportedModel(f"{model.name} was shifted after its calibration; give labels, or the file before that")
    try:
        return Reference.read(text)
    except DataError as error:
        raise UnsupportedModel(f"{model.name}: {error}; give labels, or calibrate its source again") from error
