"""Settings of a recalibration: what the command line, Python, the written file and JSON share.

Light to import: the command line reads defaults and choices here before it loads NumPy.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tna_onnx.errors import UsageError
from tna_onnx.fields import LEVEL, MAX_LEVEL, check_numbers, check_settings, documented, setting
from tna_onnx.maps import CLAMPED, MAPS, MapName
from tna_onnx.numerics.metric import Objective

if TYPE_CHECKING:
    from tna_onnx.search.candidates import SearchSettings

Method: TypeAlias = Literal["auto", "tna"]
Search: TypeAlias = Literal["auto", "none", "sparse", "complete"]
MapChoice: TypeAlias = Literal["auto", "none", MapName]
Predictions: TypeAlias = Literal["auto", "change", "keep"]
QuantizedHead: TypeAlias = Literal["requantize", "float"]
EtsLoss: TypeAlias = Literal["auto", "squared", "nll"]
MapObjective: TypeAlias = Literal["auto", Objective]


FIT_SETTINGS = ("map", "predictions", "bins", "positive", "seed", "trust_labels")
"""Settings that matter for scores alone, without a head to search."""

RECORDED = (
    "max_accuracy_drop", "method", "search", "map", "predictions", "fold", "ets_loss", "map_objective",
    "quantized_head", "trust_labels",
)  # fmt: skip
"""Settings that reports record beside those of the search."""

# The paper's n_e, where `auto` starts.
_FIRST_MEMBERS = 10

_FITTED = "What is fitted"
_SEARCHED = "The search"


@documented
@dataclass(frozen=True)
class Settings:
    """What is searched and fitted, and how it is judged.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """

    method: Method = setting(
        "auto",
        "How search and map are chosen if you name neither. auto: by cross-validation, which keeps the input model "
        "if nothing is better; tna: the paper's method, a sparse search followed by ts.",
        section=_FITTED,
    )
    search: Search = setting(
        "auto",
        "How the weight of the last layer may change. none: it stays; sparse: copies of it, rotated at random, are "
        "averaged, then the map is fitted; complete: each such average is tried with its own map; auto: as --method "
        "says.",
        section=_FITTED,
    )
    map: MapChoice = setting(
        "auto",
        "Calibration map: none, temperature (ts), ensemble temperature (ets), temperature and class biases (bias), "
        "the same above a noise floor, for data with wrong labels (bias-floor) or without that floor (bias-robust; not "
        "in auto), structured vector and matrix scaling (svs, sms), smoothed isotonic (isotonic), isotonic one-vs-all "
        "as published (irova; not in auto), atypicality-aware (aar; not in auto), a refit of the last layer near the "
        "trained one (refit); for two classes platt and beta; for several labels a sample ts, and label-ts, "
        "label-platt and label-isotonic for each label by itself. auto: chosen by cross-validation; ts for a complete "
        "search.",
        section=_FITTED,
    )
    predictions: Predictions = setting(
        "auto",
        "Whether predicted classes may change. auto: an output with labels stays as the model has it, and its "
        "probabilities may change freely; without such an output classes may change if each has ten samples, neither "
        "accuracy nor balanced accuracy falls, and no class loses much recall. change: they may change if accuracy "
        "does not fall, and an output with labels gives the likeliest class. keep: they stay; a map that would change "
        "them is clamped, which raises the predicted class just above the others.",
        section=_FITTED,
    )
    fold: bool = setting(True, "Fold linear maps into weight and bias, or append nodes for them.")
    ets_loss: EtsLoss = setting(
        "auto", "Loss that the weights of ETS minimise. auto: nll where that is the objective, else squared."
    )
    map_objective: MapObjective = setting(
        "auto", "Metric that the temperature of ts minimises. auto: the objective; the paper on ts uses nll."
    )
    objective: Objective = setting(
        "nll", "Metric for choosing the angle, the method and the temperature of ts.", section=_FITTED
    )
    max_accuracy_drop: float = setting(
        0.3,
        "Largest loss of accuracy on the calibration data that a search accepts, in percentage points; the automatic "
        "choice among all methods accepts none. Also a gate: fail if the whole interval of the loss is above this.",
        section=_FITTED,
        low=0,
        high=100,
    )
    ensemble_size: int | Literal["auto", "inf"] = setting(
        "auto",
        "Number of tilted weights to average (n_e). auto: the paper's 10, and in a sparse search more if accuracy "
        "requires it; inf: the limit of infinitely many, cos(mRC) times the original weight.",
        section=_SEARCHED,
        unit="N|inf|auto",
        parse="members",
    )
    max_ensemble_size: int = setting(
        32,
        "Most tilted weights that auto averages; if accuracy requires more, the limit of infinitely many is used.",
    )
    antithetic: bool = setting(False, "Average pairs of a rotation and its transpose.")
    tilt_bias: bool = setting(
        True,
        "Scale the bias by what averaging leaves of the weight, cos(mRC) in the limit of many. The paper leaves it as "
        "it is; scaled, the NLL was lower on every model that was measured.",
    )
    angle_step: float = setting(2.0, "Step of the angle grid, in degrees.", low=0, high=90)
    adaptive: bool = setting(True, "Try the angles from coarse to fine; otherwise the whole grid first.")
    alpha: float = setting(5.0, "First shape parameter of the Beta distribution of the rotation angles.")
    beta: float = setting(1.0, "Second shape parameter of the Beta distribution of the rotation angles.")
    theta_s: float = setting(0.9, "Largest angle of one rotation, in radians.")
    n_t: int = setting(
        1,
        "Check mRC after this many rotations, from 1 to 10,000; a tilted weight can only stop at a check. The paper "
        "uses 50.",
    )
    bins: int = setting(15, "Number of bins of ECE and AdaECE.", section="Results", low=1)
    positive: str = setting(
        "",
        "The positive class, for the tables of P(positive) and for --decide: its name, or its number from 0.",
        section="Results",
        unit="CLASS",
        note="the second of two",
    )
    seed: int = setting(0, "Seed of all random draws.", section=_SEARCHED, low=0)
    trust_labels: bool = setting(
        False, "Proceed even if labels look wrong, or classes have no samples.", section="Data"
    )
    quantized_head: QuantizedHead = setting(
        "requantize",
        "How to store new values of a weight that is quantised in the file (QDQ): quantised again, per class, or as "
        "float.",
        section=_FITTED,
    )
    confidence_level: float = setting(95.0, LEVEL, unit="PERCENT", low=50, high=MAX_LEVEL)

    def __post_init__(self) -> None:
        check_settings(self)
        # an exact copy of the input would be written
        if self.search == "none" and self.map == "none":
            raise UsageError(
                "search none with map none changes nothing; leave one of the two out, or fit one temperature: --map ts"
            )
        if self.predictions == "keep" and self.resolved_search not in ("auto", "none"):
            raise UsageError(
                f"--predictions keep: a tilted weight (--search {self.resolved_search}) can change predicted classes; "
                "leave one of the two out"
            )
        _ = self.for_search  # ranges are checked there

    @property
    def resolved_search(self) -> Search:
        """The search after `method`."""
        if self.search == "auto" and self.method == "tna":
            return "sparse"
        return self.search

    @property
    def resolved_map(self) -> str:
        """The map after `method` and the search; where predictions are kept, one that keeps them."""
        sets_map = self.method == "tna" or self.search == "complete"
        if self.map == "auto" and sets_map:
            return "ts"
        if self.predictions == "keep" and self.map in MAPS and not MAPS[self.map].keeps_order:
            return CLAMPED + self.map
        return self.map

    @property
    def fit_options(self) -> dict[str, Any]:
        """Options of the maps' fits, by name."""
        loss = self.ets_loss
        if loss == "auto":
            loss = "nll" if self.objective == "nll" else "squared"
        objective = self.objective if self.map_objective == "auto" else self.map_objective
        return {"ets_loss": loss, "objective": objective, "bins": self.bins}

    @property
    def level(self) -> float:
        """Confidence level as a fraction."""
        return self.confidence_level / 100

    @functools.cached_property
    def for_search(self) -> SearchSettings:
        """The settings of the search, with fractions in place of percentage points."""
        from tna_onnx.numerics.rotations import TiltParameters  # noqa: PLC0415 - loads NumPy
        from tna_onnx.search.candidates import SearchSettings  # noqa: PLC0415 - loads NumPy

        first, last = self._members()
        same = ("angle_step", "adaptive", "objective", "bins", "seed", "antithetic", "tilt_bias")
        return SearchSettings(
            ensemble_size=first,
            # many members come close to one temperature, which a default run fits anyway
            grows=self.ensemble_size == "auto" and self.resolved_search != "auto",
            max_ensemble_size=last,
            # points here, a fraction in the search
            max_accuracy_drop=self.max_accuracy_drop / 100,
            tilt=TiltParameters(alpha=self.alpha, beta=self.beta, theta_s=self.theta_s, n_t=self.n_t),
            **{name: getattr(self, name) for name in same},
        )

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings as reports record them: those of the search, and the choices as the user gave them."""
        choices = {name: getattr(self, name) for name in RECORDED}
        # `ensemble_size` of the search is the number that `auto` starts with
        return {**asdict(self.for_search), **choices, "ensemble_size_asked": self.ensemble_size}

    def _members(self) -> tuple[int, int]:
        """Return the members that the search starts with and the most that it may take."""
        from tna_onnx.numerics.averages import LIMIT  # noqa: PLC0415 - loads NumPy

        size: Any = self.ensemble_size
        # the cap may lie below the paper's number
        if size == "auto":
            return min(_FIRST_MEMBERS, self.max_ensemble_size), self.max_ensemble_size
        if size == "inf":
            return LIMIT, LIMIT
        if isinstance(size, str):
            raise UsageError(f"ensemble size '{size}' is not known; expected auto, inf or a positive number")
        check_numbers("a whole number", ensemble_size=size)
        members = int(size)
        if members < 1:
            raise UsageError(f"ensemble_size must be at least 1, auto or inf, got {size}")
        return members, members
