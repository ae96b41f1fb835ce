"""Settings of studies, and their names. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tna_onnx.calibration.settings import PAPER, Settings
from tna_onnx.errors import UsageError
from tna_onnx.numerics.checks import check_choice, check_numbers
from tna_onnx.numerics.metric import OBJECTIVES, Objective

if TYPE_CHECKING:
    from tna_onnx.search.settings import SearchSettings

__all__ = ["PROTOCOLS", "STUDIES", "Protocol", "StudyName", "StudySettings"]

StudyName: TypeAlias = Literal[
    "table", "rotations", "angles", "members", "angle", "samples", "dimension", "parameters", "time"
]
STUDIES: tuple[str, ...] = get_args(StudyName)
"""Studies in the order in which they are made."""

Protocol: TypeAlias = Literal["default", "paper"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)


@dataclass(frozen=True)
class StudySettings:
    """What studies are made with.

    Attributes:
        repeats: repetitions: splits of the samples, draws of rotations or of calibration data.
        seed: of all random draws.
        bins: bins of ECE and AdaECE.
        objective: metric that the angle is chosen by. The default is the paper's, the ECE, for both protocols;
            `calibrate` has the NLL, and so has the row "Default" of the table.
        protocol: `default`: weights are searched in the way of `calibrate`, for this objective; `paper`: as the paper
            prints it.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """

    repeats: int = 5
    seed: int = 0
    bins: int = 15
    objective: Objective = "ece"
    protocol: Protocol = "default"

    def __post_init__(self) -> None:
        check_numbers("a whole number", repeats=self.repeats, seed=self.seed, bins=self.bins)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("protocol", self.protocol, PROTOCOLS)
        # a mean of one has no deviation
        if self.repeats < 2:
            raise UsageError(f"repeats must be at least 2, got {self.repeats}")
        if self.bins < 1 or self.seed < 0:
            raise UsageError(f"bins must be at least 1 and seed at least 0, got {self.bins} and {self.seed}")

    @property
    def printed(self) -> bool:
        """Whether everything is done as the paper prints it."""
        return self.protocol == "paper"

    @property
    def tilt_bias(self) -> bool:
        """Whether the bias is scaled with a tilted weight."""
        return not self.printed

    def search(self, seed: int) -> SearchSettings:
        """Return the settings of a search with a seed of its own."""
        return self.calibration(seed).for_search

    def calibration(self, seed: int, **words: Any) -> Settings:
        """Return what `calibrate` would be asked for, with some words of its own."""
        chosen: dict[str, Any] = {"search": "sparse", "map": "none"}
        own = {"objective": self.objective, "bins": self.bins, "seed": seed, "tilt_bias": self.tilt_bias}
        if self.printed:
            own["n_t"] = PAPER["n_t"]
        return Settings(**{**chosen, **own, **words})

    @property
    def by_default(self) -> StudySettings:
        """The same without the paper's protocol."""
        return replace(self, protocol="default")

    @property
    def recorded(self) -> dict[str, Any]:
        """What results keep."""
        return asdict(self)
