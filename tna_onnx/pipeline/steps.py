"""What the steps of a change are made of, as JSON in the metadata of a file and back (see `pipeline.change`); and what
the entries of a file state of its steps: written again step by step, by the words of who writes them.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph import decisions
from tna_onnx.graph.difference import PLACEHOLDER_INT, NotRebuilt
from tna_onnx.graph.labels import LabelChange
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, PRIOR_BLOCK, NodeOps, beside_earlier, free_block, head_key, provenance
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.readout import Head, Layout, Readout
from tna_onnx.maps import MAPS, is_map_of, map_of_class
from tna_onnx.maps.atypicality import FeatureSpace
from tna_onnx.maps.base import Folding, apply_map
from tna_onnx.maps.isotonic import TopVersusAll
from tna_onnx.numerics import operating_points, outliers
from tna_onnx.numerics.ops import Ops
from tna_onnx.numerics.prior_shift import log_ratio
from tna_onnx.pipeline.methods import Method

# Numbers of one array, and of all, that the metadata hold; whole numbers are shorter.
_MAX_ARRAY = 1024
_MAX_NUMBERS = 2**14
_MAX_INTEGERS = 2**16

_SUM = 1e-6  # by which weights of distributions, or class frequencies, may miss 1


@dataclass(frozen=True, eq=False)
class Added:
    """Logits plus one number a class: what is left of a change where the file has no place for a bias."""

    bias: NDArray[np.floating]  # (C,) numbers

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002 - as every map is called
        """Return s + c."""
        return op.add(logits, op.const(self.bias))

    def folded(self) -> Folding:
        """Return the shift."""
        return Folding(1.0, np.asarray(self.bias, np.float64))


@dataclass(frozen=True)
class OriginalClass:
    """The class that the input predicts, as a further output (N,) of integers; logits stay as they are."""

    output: str = "original_class"  # its name

    keeps_order: ClassVar[bool] = True
    for_classes: ClassVar[bool] = True

    def forward(self, op: NodeOps, logits: str, features: str = "") -> str:  # noqa: ARG002 - as every map is called
        """Write the output, and return the logits."""
        op.class_output(logits, self.output)
        return logits


@dataclass(frozen=True, eq=False)
class Change:
    """What is done to a head, or behind the tensor of scores."""

    weight: NDArray[Any] | None = None  # (C, n) new class vectors; None where they stay, or are computed
    bias: NDArray[Any] | None = None  # (C,) new bias, where the head holds one; None likewise
    bias_factor: float = 1.0  # what the bias that the file has is multiplied by
    folded: Any = None  # a map in weight and bias that are computed from those of the source; see `can_recompute`
    maps: tuple[Any, ...] = ()  # formulas that are appended, the first one first
    keeps_order: bool = True  # none of these changes which class comes first
    shape: tuple[int, ...] | Layout = (0,)  # of one sample's logits (`graph.rewrite`)
    block: str = PREFIX  # how names of appended nodes begin
    labels: LabelChange | None = None  # what becomes of labels where the maps change the order of the classes


@dataclass(frozen=True, eq=False)
class HeadStep:
    """A change of scores that was done again."""

    source: str  # SHA-256 of the file that it says it was done to
    model: Model  # that file
    readout: Readout  # the head, or the tensor of scores
    change: Change  # what was done
    known: bool  # all its numbers but those of the weight are in the metadata

    @property
    def fitted(self) -> Any:
        """The calibration map; None where none is written down."""
        maps = (self.change.folded, *self.change.maps)
        return next(
            (applied for applied in maps if applied is not None and not isinstance(applied, (Added, OriginalClass))),
            None,
        )

    @property
    def holds_bias(self) -> bool:
        """Whether the file has a place for a bias of each class."""
        return isinstance(self.readout, Head) and self.readout.holds_bias

    @property
    def shifts(self) -> bool:
        """Whether it changes class frequencies: it adds a number a class, and that is all."""
        change = self.change
        maps = [applied for applied in (change.folded, *change.maps) if applied is not None]
        alone = len(maps) == 1 and isinstance(maps[0], Added) and change.bias is None
        return change.weight is None and change.bias_factor == 1 and (alone or not (maps or change.bias is None))


@dataclass(frozen=True, eq=False)
class DecisionStep:
    """Decisions that were added again."""

    source: str  # SHA-256 of the file that it says they were added to
    model: Model  # what they were added to
    guarded: decisions.Guarded  # formulas of the scores
    thresholds: Mapping[str, NDArray[np.float32]]  # what these are compared with
    names: Mapping[str, str]  # role -> output


class Encoder:
    """Values as JSON, to the last bit; of an array that is too large, its type and shape."""

    def __init__(self) -> None:
        self._left = {"f": _MAX_NUMBERS, "i": _MAX_INTEGERS}
        self.left_out = 0

    def encoded(self, value: Any, limit: int = _MAX_ARRAY) -> Any:
        """Return a value that JSON has; `limit` numbers of an array."""
        if isinstance(value, np.ndarray):
            array = {"dtype": value.dtype.name, "shape": list(value.shape)}
            fits = self._fits("i" if value.dtype.kind in "iu" else "f", value.size, limit)
            return array | ({"values": value.reshape(-1).tolist()} if fits else {})
        if isinstance(value, (list, tuple)):
            numbers = bool(value) and all(isinstance(item, float) for item in value)
            if numbers and not self._fits("f", len(value), limit):
                return {"numbers": len(value)}
            return [self.encoded(item) for item in value]
        if dataclasses.is_dataclass(value):
            # what was measured on the samples is for the fit alone
            fields = [field.name for field in dataclasses.fields(value)]
            names = [name for name in fields if not (isinstance(value, FeatureSpace) and name == "measured")]
            # costs of a few classes are an entry of their own, too
            limit = _MAX_NUMBERS if isinstance(value, operating_points.DecisionRule) else _MAX_ARRAY
            return {"is": type(value).__name__, **{name: self.encoded(getattr(value, name), limit) for name in names}}
        if isinstance(value, Mapping):
            return {"entries": {key: self.encoded(item) for key, item in value.items()}}
        return value.item() if isinstance(value, np.generic) else value

    def _fits(self, kind: str, count: int, limit: int) -> bool:
        if count > min(_MAX_INTEGERS if kind == "i" else limit, self._left[kind]):
            self.left_out += 1
            return False
        self._left[kind] -= count
        return True


class Decoder:
    """The way back, with placeholders for the numbers of large arrays.

    Args:
        size: most numbers of an array.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.placeholders = 0

    def decoded(self, value: Any) -> Any:
        """Return the value."""
        if isinstance(value, list):
            return tuple(self.decoded(item) for item in value)
        if not isinstance(value, dict):
            return value
        if "shape" in value:
            return self._array(np.dtype(value["dtype"]), tuple(map(int, value["shape"])), value.get("values"))
        if "numbers" in value:
            return tuple(self._array(np.dtype(np.float64), (int(value["numbers"]),), None).tolist())
        if "entries" in value:
            return {key: self.decoded(item) for key, item in value["entries"].items()}
        cls = _CLASSES.get(value["is"]) or map_of_class(value["is"])
        if cls is None:
            raise NotRebuilt(f"this version of tna-onnx does not know {value['is']!r}")
        fitted = cls(**{key: self.decoded(item) for key, item in value.items() if key != "is"})
        _require_fit(fitted)
        return fitted

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], values: Any) -> NDArray[Any]:
        count = 1
        for length in shape:
            count *= length
        if dtype.kind not in "fi" or not 0 <= count <= self._size:
            raise NotRebuilt(f"expected an array of numbers that the file can hold, found {dtype} {shape}")
        if values is not None:
            array = np.array(values, dtype).reshape(shape)
            # a placeholder would take the number of the file
            if dtype.kind == "f" and np.isnan(array).any():
                raise NotRebuilt("it holds values that are no numbers")
            return array
        self.placeholders += 1
        return np.full(shape, np.nan if dtype.kind == "f" else PLACEHOLDER_INT, dtype)


def _require_fit(fitted: Any) -> None:
    """Refuse a map with numbers that no fit gives, which could turn its predictions round."""
    is_map = isinstance(fitted, Added) or map_of_class(type(fitted).__name__) is not None
    for name, value in vars(fitted).items():
        if is_map and _is_infinite(value):
            raise NotRebuilt(f"it holds a {type(fitted).__name__} with infinite numbers")
        if name not in _RANGES or value is None:
            continue
        low, high = _RANGES[name]
        numbers = np.asarray(value, np.float64)
        # of three distributions, the uniform one, the last, is not alone
        mixture = isinstance(fitted, MAPS["ets"]) and name == "weights"
        if mixture and not (abs(numbers.sum() - 1) < _SUM and numbers[2] < 1):
            raise NotRebuilt("it holds weights of three distributions that no fit gives")
        numbers = numbers[~np.isnan(numbers)] if np.ndim(value) else numbers  # NaN stands for those of the file
        if not np.all((numbers >= low) & (numbers <= high)):
            raise NotRebuilt(f"it holds a {type(fitted).__name__} whose {name} no fit gives")


def _is_infinite(value: Any) -> bool:
    """Whether a number, or one in an array or in tuples of them, is infinite."""
    if isinstance(value, tuple):
        return any(map(_is_infinite, value))
    return isinstance(value, (float, np.ndarray)) and bool(np.isinf(value).any())


# Least and largest value of a map's field, by its name.
_RANGES = {
    "temperature": (1e-6, 1e6),
    "temperatures": (1e-6, 1e6),
    "n_classes": (2, np.inf),
    "weights": (0.0, 1.0),
    "share": (0.0, 1.0),
    **dict.fromkeys(("slope", "slopes"), (np.finfo(np.float64).tiny, np.finfo(np.float64).max)),
    **dict.fromkeys(("a", "b"), (0.0, np.finfo(np.float64).max)),
}

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Added, OriginalClass, LabelChange, FeatureSpace, TopVersusAll, Layout, ClassOutput, outliers.Energy,
        outliers.Mahalanobis, outliers.Residual, decisions.Guarded, decisions.OutlierInput, decisions.SetScore,
        operating_points.DecisionRule,
    )
}  # fmt: skip
"""Classes that metadata may name, besides those of maps."""

_SHIFT = "shift"
_OF_STEPS = ("change", "seal")

# Entries of a calibration on how the tool was run, which nothing in the file shows: all of these, and some of those.
_OF_RUN = (
    "version", "search", "ensemble_size", "antithetic", "alpha", "beta", "theta_s", "objective", "n_t",
    "max_accuracy_drop", "bins", "seed", "calibration_sha256", "calibration_samples", "calibration_sketch",
    "calibration_form",
)  # fmt: skip
_OF_SOME_RUNS = ("teacher_sha256", "preprocessing", "tf32")
_OF_POSITIONS = ("positions", "position_samples")

# How the keys begin under which the numbers of a map are stated that may be in a weight.
_NUMBERS = (
    "temperature", "strength", "bias", "vector", "matrix", "weight_change", "slope", "intercept", "labels_shared",
)  # fmt: skip

# What a shift states: always, and of frequencies that were estimated.
_SHIFT_WORDS = {"method", "source", "target", "samples", "calib_sha256", "calib_sketch", "calib_form", "source_sha256"}
_ESTIMATED_WORDS = {*_SHIFT_WORDS, "interval", "target_samples", "target_sha256", "target_sketch", "target_form"}


def require_command(step: HeadStep | DecisionStep, earlier: Sequence[HeadStep | DecisionStep]) -> None:
    """Refuse a step that no command makes behind those before it.

    Heads are calibrated, each once unless there are others, then the file is shifted once, and guarded once.
    """
    ranks = [_rank(step) for step in earlier]
    rank = _rank(step)
    if rank < max(ranks, default=0) or (rank and rank in ranks):
        raise NotRebuilt("it says that it was made in an order that this tool refuses")
    if not isinstance(step, HeadStep):
        return
    outputs = {step.readout.output for step in earlier if isinstance(step, HeadStep)}
    if not (step.shifts or _is_calibration(step)) or (not rank and outputs == {step.readout.output}):
        raise NotRebuilt("it states a change that no calibration makes")
    if not (_is_in_form(step) and step.change.block == _block(step)):
        raise NotRebuilt("it states a form that this tool does not write")


def _rank(step: HeadStep | DecisionStep) -> int:
    return 2 if isinstance(step, DecisionStep) else int(step.shifts)


def _block(step: HeadStep) -> str:
    """Return how the names of nodes begin that a step appends."""
    if not step.shifts:
        return free_block(step.model, step.readout.output)
    appended = any(name.startswith(f"{PREFIX}/") for name in step.model.producers)
    return PRIOR_BLOCK if appended and step.change.maps else PREFIX


def _is_in_form(step: HeadStep) -> bool:
    """Whether a step states the shape of a sample's scores, and how its map treats the first class, as they are."""
    readout, change = step.readout, step.change
    # of a map in weight and bias nothing in the file depends on it
    if change.maps and change.keeps_order != all(map(keeps_order, change.maps)):
        return False
    if step.shifts and not change.maps:
        return change.shape == (0,)
    if isinstance(change.shape, Layout):
        axes = (readout.class_axis,) if not readout.binary else (readout.class_axis, 0)
        return readout.several and change.shape.class_axis in axes
    scores = () if readout.binary else (readout.n_classes,)
    return not readout.several and tuple(length for length in change.shape if length != 1) == scores


def keeps_order(fitted: Any) -> bool:
    """Whether a map never changes which class comes first."""
    return bool(getattr(fitted, "keeps_order", False) and getattr(fitted, "for_classes", False))


def _is_calibration(step: HeadStep) -> bool:
    """Whether a calibration writes this: one map at most, of such scores, and a new bias beside a new weight alone."""
    change, readout = step.change, step.readout
    maps = [applied for applied in change.maps if not isinstance(applied, OriginalClass)]
    if change.weight is None and not (change.bias is None and change.bias_factor == 1):
        return False
    if change.folded is not None and (change.weight is not None or change.maps):
        return False
    if maps and isinstance(maps[0], Added):  # what is left of a bias, where the file has no place for it
        maps = maps[1:] if change.weight is not None and not step.holds_bias else maps
    maps += [] if change.folded is None else [change.folded]
    fits = all(
        applied.name in MAPS
        and is_map_of(applied.name, readout.n_classes, labels=readout.multi_label)
        and _is_of_classes(applied, step)
        for applied in maps
        if not isinstance(applied, Added)
    )
    return fits and len(maps) <= 1 and not any(isinstance(applied, Added) for applied in maps)


def _is_of_classes(fitted: Any, step: HeadStep) -> bool:
    """Whether a map gives as many logits as the head has classes, with a number for each where it has some."""
    readout = step.readout
    numbers = {np.shape(value) for name, value in vars(fitted).items() if name in ("bias", "vector")}
    if not numbers <= {(readout.n_classes,)} or getattr(fitted, "n_classes", readout.n_classes) != readout.n_classes:
        return False
    features = np.zeros((1, readout.n_features if isinstance(readout, Head) else 0))
    with np.errstate(all="ignore"):  # of numbers that only the file has
        return bool(np.shape(apply_map(fitted, np.zeros((1, readout.n_classes)), features)) == (1, readout.n_classes))


def stated_after(step: HeadStep | DecisionStep, entries: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a file behind a step, but for those on the steps themselves.

    `step`: what was done; the entries of its model are those behind the step before. Raises KeyError: one that every
    file of this kind has is missing.
    """
    before = _without_steps(provenance(step.model))
    if isinstance(step, DecisionStep):
        read = {key: value for key, value in step.guarded.output.provenance.items() if key not in before}
        guard = {key: value for key, value in entries.items() if key.partition("_")[0] == "guard"}
        return {**before, **read, **guard}
    output = output_of(step.readout)
    if step.shifts:
        return {**before, **output.provenance, "output_kind": output.kind, _SHIFT: _of_shift(step, entries[_SHIFT])}
    start = head_key(output.name)
    words = {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)} or entries
    return _without_steps(beside_earlier(step.model, output.name, _of_calibration(step, words)))


def false_entries(stated: Mapping[str, str], entries: Mapping[str, str]) -> Iterator[Difference]:
    """Yield the entries of a file that are not those that its steps would have written, and those that are missing."""
    entries = _without_steps(entries)
    for key in stated.keys() | entries:
        if stated.get(key) != entries.get(key):
            yield Difference("metadata", f"{PREFIX}.{key}", "changed", "not that of the change in the file")


def _without_steps(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if key.rpartition("/")[2] not in _OF_STEPS}


def _of_calibration(step: HeadStep, words: Mapping[str, str]) -> dict[str, str]:
    """Return what a calibration states: which source, output and map, and the numbers of the map.

    `words`: entries of the file on it; of the numbers in a weight that only the file has, these are not compared.
    """
    fitted, weight = step.fitted, step.change.weight is not None
    output = output_of(step.readout)
    optional = (*_OF_SOME_RUNS, *(_OF_POSITIONS if output.several else ()))
    free = {key: words[key] for key in _OF_RUN} | {key: words[key] for key in optional if key in words}
    tilted = json.loads(words["angle_degrees"]) != 0
    name, angle = words["map"], words["angle_degrees"]
    brief: dict[str, Any] = {}
    if fitted is not None:
        name = fitted.name
        brief = fitted.brief
        free |= {key: words[key] for key in brief if not step.known}
    elif not weight:
        name = "none"
    # without a map of its own, what was fitted is in the weight
    elif not _is_in_weight(name, tilted=tilted or step.readout.n_classes > _MAX_ARRAY):
        name = ""
    if fitted is None and name in MAPS:
        free |= {key: value for key, value in words.items() if key.startswith(_NUMBERS)}
    if tilted and not weight:
        angle = "0.0"
    elif weight and fitted is not None and not tilted:
        angle = ""  # of a weight as it is, a map is in it, or behind it
    labels = _labels(name, words, tilted=tilted)
    stated: dict[str, Any] = {
        **brief,
        **free,
        "source_sha256": step.source,
        "map": name,
        "angle_degrees": angle,
        "method": words["method"] if words["method"] in labels else labels[0],
        **output.provenance,
        "output_kind": output.kind,
    }
    stated |= quantization_advice(fitted)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in stated.items()}


def quantization_advice(fitted: Any) -> dict[str, str]:
    """Return what the file should not go through: its map compares features with those of the network as it is."""
    if fitted is None or not fitted.needs_features or fitted.folded() is not None:
        return {}
    return {"quantization": "quantise the source and calibrate the result: this map reads features as they are"}


def _is_in_weight(name: str, *, tilted: bool) -> bool:
    """Whether a map may be in a weight with numbers of its own: of the old one, one of few numbers is computed."""
    if name not in MAPS:
        return tilted and name == "none"
    return MAPS[name].foldable and (tilted or not MAPS[name].few_parameters)


def _labels(name: str, words: Mapping[str, str], *, tilted: bool) -> list[str]:
    """Return what methods with a map are called: one of each strength, or the one that is stated."""
    strengths = getattr(MAPS.get(name), "strengths", (0.0,))
    stated = json.loads(words.get("strength", "0")) or strengths
    return [
        Method(tilted, name, step).label for step, strength in enumerate(strengths) if strength in np.ravel(stated)
    ] or [""]


def _of_shift(step: HeadStep, text: str) -> str:
    """Return what a shift states, its frequencies as they are where the numbers in the file are theirs."""
    shift = json.loads(text)
    true = {*shift} in (_SHIFT_WORDS, _ESTIMATED_WORDS) and shift["source_sha256"] == step.source
    true = true and json.dumps(shift) == text
    if step.known:
        (added,) = (applied for applied in (step.change.folded, *step.change.maps) if isinstance(applied, Added))
        true = true and _is_ratio(shift, added.bias)
    return text if true else ""


def _is_ratio(shift: Mapping[str, Any], bias: NDArray[np.floating]) -> bool:
    source, target = (np.array(shift[name], np.float64) for name in ("source", "target"))
    if not all(np.all(shares >= 0) and abs(shares.sum() - 1) < _SUM for shares in (source, target)):
        return False
    with np.errstate(all="ignore"):
        ratio = log_ratio(source, target)
    # a logarithm may differ by a rounding from one machine to another
    return bias.shape == ratio.shape and bool(np.allclose(bias, ratio, rtol=1e-9, atol=1e-12))
