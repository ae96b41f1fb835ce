"""What the steps of a change are made of, as JSON in the metadata of a file and back (see `pipeline.change`)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.graph import decisions
from tna_onnx.graph.difference import PLACEHOLDER_INT, NotRebuilt
from tna_onnx.graph.labels import UNCHANGED, OutputChange
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.readout import Layout
from tna_onnx.maps import map_of_class
from tna_onnx.maps.atypicality import FeatureSpace
from tna_onnx.maps.base import Folding
from tna_onnx.maps.clamp import Clamped
from tna_onnx.maps.isotonic import TopVersusAll
from tna_onnx.numerics import operating_points, outliers
from tna_onnx.numerics.ops import Ops

# Fields of these types hold one number or word: an array in their place would be another formula.
_PLAIN: dict[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "str": (str,), "bool": (bool,)}

# Numbers of one array, and of all, that the metadata hold; whole numbers are shorter.
_MAX_ARRAY = 1024
_MAX_NUMBERS = 2**14
_MAX_INTEGERS = 2**16


@dataclass(frozen=True, eq=False)
class Added:
    """Logits plus one number a class: what is left of a change where the file has no place for a bias."""

    bias: NDArray[np.floating]  # (C,) numbers

    def __post_init__(self) -> None:
        """Refuse infinite numbers; NaN stands for those that only a file has."""
        if np.isinf(self.bias).any():
            raise DataError("added: bias is not finite")

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002 - as every map is called
        """Return s + c."""
        return op.add(logits, op.const(self.bias))

    def folded(self) -> Folding:
        """Return the shift."""
        return Folding(1.0, np.asarray(self.bias, np.float64))


@dataclass(frozen=True, eq=False)
class Change:
    """What is done to a head, or behind the tensor of scores."""

    weight: NDArray[Any] | None = None  # (C, n) new class vectors; None where they stay, or are computed
    bias: NDArray[Any] | None = None  # (C,) new bias, where the head holds one; None likewise
    bias_factor: float = 1.0  # what the bias that the file has is multiplied by
    folded: Any = None  # a map in weight and bias that are computed from those of the source; see `can_recompute`
    maps: tuple[Any, ...] = ()  # formulas that are appended, the first one first
    shape: tuple[int, ...] | Layout = (0,)  # of one sample's logits (`graph.rewrite`)
    block: str = PREFIX  # how names of appended nodes begin
    other_outputs: OutputChange = UNCHANGED  # what becomes of other outputs where maps are appended


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
        size: most numbers of all arrays together.
        classes: that a map which keeps predictions is of, 0 for several labels; None for any number.
    """

    def __init__(self, size: int, classes: int | None = None) -> None:
        self._left = size
        self._classes = classes
        self.placeholders = 0

    def decoded(self, value: Any) -> Any:
        """Return the value."""
        if isinstance(value, list):
            return tuple(self.decoded(item) for item in value)
        if not isinstance(value, dict):
            # NaN would be a placeholder, which takes the number of the file
            if isinstance(value, float) and np.isnan(value):
                raise NotRebuilt("it holds values that are no numbers")
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
        fields = {key: self.decoded(item) for key, item in value.items() if key != "is"}
        for field in dataclasses.fields(cls):
            kinds = _PLAIN.get(str(getattr(field.type, "__name__", field.type)))
            found = fields.get(field.name)
            if found is not None and kinds and type(found) not in kinds:
                raise NotRebuilt(f"expected one {kinds[0].__name__} as {field.name} of {cls.__name__}")
        if issubclass(cls, Clamped) and self._classes not in (None, fields["classes"]):
            raise NotRebuilt(f"it keeps predictions of {fields['classes']} classes; expected {self._classes}")
        return cls(**fields)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], values: Any) -> NDArray[Any]:
        count = 1
        for length in shape:
            count *= length
        if dtype.kind not in "fi" or not 0 <= count <= self._left:
            raise NotRebuilt(f"expected an array of numbers that the file can hold, found {dtype} {shape}")
        self._left -= count
        if values is not None:
            array = np.array(values, dtype).reshape(shape)
            # a placeholder would take the number of the file
            if dtype.kind == "f" and np.isnan(array).any():
                raise NotRebuilt("it holds values that are no numbers")
            return array
        self.placeholders += 1
        return np.full(shape, np.nan if dtype.kind == "f" else PLACEHOLDER_INT, dtype)


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Added, OutputChange, FeatureSpace, TopVersusAll, Layout, ClassOutput, outliers.Energy,
        outliers.Mahalanobis, outliers.Residual, decisions.Guarded, decisions.OutlierInput, decisions.SetScore,
        operating_points.DecisionRule,
    )
}  # fmt: skip
"""Classes that metadata may name, besides those of maps."""
