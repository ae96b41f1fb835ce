"""Settings of a recalibration: what the command line, Python, the written file and JSON share.

Light to import: the command line reads defaults and choices here before it loads NumPy.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tna_onnx.errors import UsageError
from tna_onnx.maps import MAPS, MapName
from tna_onnx.numerics.checks import check_choice, check_level, check_numbers
from tna_onnx.numerics.metric import OBJECTIVES, Objective

if TYPE_CHECKING:
    from tna_onnx.search.settings import SearchSettings

__all__ = [
    "ANCHORS",
    "ETS_LOSSES",
    "MAP_CHOICES",
    "MAP_OBJECTIVES",
    "METHODS",
    "PAPER",
    "PREDICTIONS",
    "QUANTIZED_HEADS",
    "SEARCHES",
    "QuantizedHead",
    "Search",
    "Settings",
]

Method: TypeAlias = Literal["auto", "tna"]
Search: TypeAlias = Literal["auto", "none", "sparse", "complete"]
MapChoice: TypeAlias = Literal["auto", "none", MapName]
Anchor: TypeAlias = Literal["original", "refit"]
Predictions: TypeAlias = Literal["free", "keep"]
QuantizedHead: TypeAlias = Literal["requantize", "float"]
EtsLoss: TypeAlias = Literal["auto", "squared", "nll"]
MapObjective: TypeAlias = Literal["auto", Objective]

METHODS: tuple[str, ...] = get_args(Method)
ANCHORS: tuple[str, ...] = get_args(Anchor)
PREDICTIONS: tuple[str, ...] = get_args(Predictions)
SEARCHES: tuple[str, ...] = get_args(Search)
MAP_CHOICES: tuple[str, ...] = get_args(MapChoice)
QUANTIZED_HEADS: tuple[str, ...] = get_args(QuantizedHead)
ETS_LOSSES: tuple[str, ...] = get_args(EtsLoss)
MAP_OBJECTIVES: tuple[str, ...] = ("auto", *OBJECTIVES)

# The paper's n_e, where `auto` starts.
_FIRST_MEMBERS = 10


@dataclass(frozen=True)
class Settings:
    """What is searched and fitted, and how it is judged.

    Attributes:
        method: what `search` and `map` are where they say `auto`: `auto` (chosen by cross-validation, the input model
            among the choices) or `tna` (the paper's: a sparse search, then `ts`).
        search: `sparse` (a tilted weight, then the map), `complete` (all pairs of a tilted weight and its map), `none`
            (the original weight) or `auto`.
        map: `none`, a name in `MAPS` (docs/explanation/method.md has their formulas) or `auto`. A complete search takes
            `ts` then, and so does a search around an anchor.
        anchor: the layer around which a search that was named tilts: the `original` one, or one that is refitted near
            it (`refit`), as strongly as cross-validation says.
        predictions: `keep` lets `auto` take nothing that can change a predicted class; `free` lets it, where
            cross-validated accuracy does not fall.
        fold: put TS into weight and bias, so that the graph stays as it is.
        ets_loss: what the weights of ETS minimise: `squared` error or `nll`; `auto` is `nll` where that is the
            objective.
        map_objective: metric that the temperature of `ts` minimises; `auto` is the objective, its source has `nll`.
        objective: metric that angle and method are chosen by: `nll`, `ece`, `adaece` or `brier`.
        max_accuracy_drop: percentage points of accuracy that the new weight may lose on the calibration data; also a
            gate on the result, missed if the whole interval of the loss lies beyond it.
        ensemble_size: tilted weights averaged, n_e. `auto` starts at the paper's 10 and takes more if accuracy asks for
            it; a number is taken as given; `inf` is the limit of many, cos(mRC) times the original weight.
        max_ensemble_size: most members that `auto` may take; where accuracy asks for more, the limit of many.
        antithetic: average pairs of a rotation and its transpose.
        tilt_bias: scale the bias by what averaging leaves of the weight, cos(mRC) in the limit of many members. The
            paper leaves it as it is; scaled, the NLL was lower on every model that was measured.
        angle_step: grid step in degrees.
        adaptive: look at the angles from coarse to fine; otherwise at the whole grid first.
        alpha: first shape of the Beta distribution of the rotation angles.
        beta: second shape.
        theta_s: largest angle of one rotation, radians.
        n_t: rotations between two looks at mRC, where a tilted weight can stop, from 1 to 10,000 (paper: 50).
        bins: bins of ECE and AdaECE.
        seed: of all random draws.
        trust_labels: calibrate although labels look wrong beside the predictions, and let maps move classes against
            each other although some have no calibration sample.
        quantized_head: what becomes of a weight that is stored quantised (QDQ): `requantize` it, per class, or keep it
            in `float`.
        confidence_level: of every interval in the report, per cent: 95 gives 95 % intervals.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """

    method: Method = "auto"
    search: Search = "auto"
    map: MapChoice = "auto"
    anchor: Anchor = "original"
    predictions: Predictions = "free"
    fold: bool = True
    ets_loss: EtsLoss = "auto"
    map_objective: MapObjective = "auto"
    objective: Objective = "nll"
    max_accuracy_drop: float = 0.3
    ensemble_size: int | Literal["auto", "inf"] = "auto"
    max_ensemble_size: int = 32
    antithetic: bool = False
    tilt_bias: bool = True
    angle_step: float = 2.0
    adaptive: bool = True
    alpha: float = 5.0
    beta: float = 1.0
    theta_s: float = 0.9
    n_t: int = 1
    bins: int = 15
    seed: int = 0
    trust_labels: bool = False
    quantized_head: QuantizedHead = "requantize"
    confidence_level: float = 95.0

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_choice("predictions", self.predictions, PREDICTIONS)
        check_choice("search", self.search, SEARCHES)
        check_choice("map", self.map, MAP_CHOICES)
        check_choice("anchor", self.anchor, ANCHORS)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("ets_loss", self.ets_loss, ETS_LOSSES)
        check_choice("map_objective", self.map_objective, MAP_OBJECTIVES)
        check_choice("quantized_head", self.quantized_head, QUANTIZED_HEADS)
        # an exact copy of the input would be written
        if self.search == "none" and self.map == "none":
            raise UsageError("search none with map none changes nothing; choose another --search or another --map")
        if self.predictions == "keep":
            self._check_kept()
        if self.anchor == "refit":
            self._check_anchor()
        whole = ("max_ensemble_size", "n_t", "bins", "seed")
        real = ("max_accuracy_drop", "angle_step", "alpha", "beta", "theta_s")
        check_numbers("a whole number", **{name: getattr(self, name) for name in whole})
        check_numbers("a number", **{name: getattr(self, name) for name in real})
        _ = self.for_search  # ranges are checked there
        check_level(self.confidence_level)

    @property
    def resolved_search(self) -> Search:
        """The search after `method`."""
        if self.search == "auto" and self.method == "tna":
            return "sparse"
        return self.search

    @property
    def resolved_map(self) -> MapChoice:
        """The map after `method`, the search and the anchor."""
        given = self.method == "tna" or self.search == "complete" or self.anchor == "refit"
        if self.map == "auto" and given:
            return "ts"
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
        """The part that the search reads, in its units.

        Raises:
            UsageError: a value out of its range.
        """
        from tna_onnx.numerics.rotations import TiltParameters  # noqa: PLC0415 - loads NumPy
        from tna_onnx.search.settings import SearchSettings  # noqa: PLC0415 - loads NumPy

        first, last = self._members()
        try:
            return SearchSettings(
                ensemble_size=first,
                grows=self.ensemble_size == "auto",
                max_ensemble_size=last,
                angle_step=self.angle_step,
                adaptive=self.adaptive,
                objective=self.objective,
                bins=self.bins,
                # points here, a fraction in the search
                max_accuracy_drop=self.max_accuracy_drop / 100,
                seed=self.seed,
                antithetic=self.antithetic,
                tilt_bias=self.tilt_bias,
                tilt=TiltParameters(alpha=self.alpha, beta=self.beta, theta_s=self.theta_s, n_t=self.n_t),
            )
        except ValueError as error:
            raise UsageError(str(error)) from error

    @property
    def recorded(self) -> dict[str, Any]:
        """What reports keep: the search's part, and the words that were asked for, in their units."""
        return {
            **asdict(self.for_search),
            "max_accuracy_drop": self.max_accuracy_drop,
            "method": self.method,
            "search": self.search,
            "map": self.map,
            "anchor": self.anchor,
            "predictions": self.predictions,
            "fold": self.fold,
            "ets_loss": self.ets_loss,
            "map_objective": self.map_objective,
            "quantized_head": self.quantized_head,
            "trust_labels": self.trust_labels,
            # `ensemble_size` of the search is the number that `auto` starts with
            "ensemble_size_asked": self.ensemble_size,
        }

    def _check_kept(self) -> None:
        """Refuse a method by name that can change predictions, where they are to be kept.

        Raises:
            UsageError: there is one.
        """
        if self.resolved_search not in ("auto", "none"):
            raise UsageError(
                f"--predictions keep: a tilted weight (--search {self.resolved_search}) can change predicted classes; "
                "leave one of the two out"
            )
        name = self.resolved_map
        if name not in ("auto", "none") and not MAPS[name].keeps_order:
            raise UsageError(
                f"--predictions keep: --map {name} can change predicted classes; leave one of the two out, or use "
                "--map ts"
            )

    def _check_anchor(self) -> None:
        """Refuse what a refitted anchor does not go with.

        Raises:
            UsageError: nothing is tilted around it, or it would be refitted again.
        """
        if self.resolved_search not in ("sparse", "complete"):
            raise UsageError(
                "anchor refit needs a search by name; add --method tna, --search sparse or --search complete. Without "
                "a search, use --map refit, or --method auto, which compares a refit with all other methods"
            )
        if self.map == "refit":
            raise UsageError("anchor refit with map refit fits the layer twice; choose another --map")

    def _members(self) -> tuple[int, int]:
        """Return the members that the search starts with and the most that it may take.

        Raises:
            UsageError: neither a positive whole number nor `auto` nor `inf`.
        """
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


PAPER: dict[str, Any] = {
    "method": "tna",
    "objective": "ece",
    "map_objective": "nll",
    "ets_loss": "squared",
    # the paper reports what the accuracy loses, and bounds nothing
    "max_accuracy_drop": 100.0,
    "ensemble_size": 10,
    "n_t": 50,
    "tilt_bias": False,
    "adaptive": False,
}
"""Fields of `Settings` as the paper prints them, in "Hyperparameters" and "Methods"; see docs/explanation/paper.md."""
