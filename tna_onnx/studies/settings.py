"""Settings and names of studies. Light to import: the command line reads defaults and choices here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from tna_onnx.fields import check_settings, documented, setting
from tna_onnx.numerics.metric import Objective
from tna_onnx.pipeline.settings import Settings

if TYPE_CHECKING:
    from tna_onnx.search.candidates import SearchSettings


class Experiment(NamedTuple):
    """A row of the table of experiments."""

    title: str
    shows: str  # what it draws, and against what
    element: str  # figure, table or section of the paper
    module: str  # in `tna_onnx.studies`; its function of the name of the study returns a `tna_onnx.results.study.Found`


EXPERIMENTS = {
    "table": Experiment("Main results", "all metrics against map and search", "main table", "main_table"),
    "rotations": Experiment(
        "mRC against the number of rotations", "mRC against rotations", "plots of mRC against n_r", "geometry"
    ),
    "angles": Experiment(
        "Angles between class vectors and features",
        "share of samples against angle to class vectors",
        "distribution plots of the angles",
        "geometry",
    ),
    "members": Experiment(
        "Members averaged", "accuracy, ECE and NLL against averaged members", "accuracy against n_e", "curves"
    ),
    "angle": Experiment(
        "Metrics against the angle", "ECE, accuracy and NLL against angle", "optimisation curve", "curves"
    ),
    "samples": Experiment(
        "Data efficiency", "ECE and NLL against calibration samples", "data efficiency plot", "curves"
    ),
    "dimension": Experiment(
        "Feature dimension",
        "ECE and accuracy against dimension of features",
        "table and figure on the dimension n",
        "curves",
    ),
}
"""Every study by its name, in the order in which they are made."""

Protocol: TypeAlias = Literal["default", "paper"]

PAPER_N_T = 50
"""The paper's n_t: rotations from one look at mRC to the next."""


@documented
@dataclass(frozen=True)
class StudySettings:
    """Settings of the studies.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """

    repeats: int = setting(
        5,
        "Number of repetitions: splits of the samples, draws of rotations and of calibration data.",
        section="What is fitted",
        low=2,
    )
    seed: int = setting(0, "Seed of all random draws.", section="The search", low=0)
    bins: int = setting(15, "Number of bins of ECE and AdaECE.", section="Results", low=1)
    objective: Objective = setting(
        "ece",
        "Metric for choosing the angle; the paper's by default. The row Default of the table uses nll, as calibrate "
        "does.",
        section="What is fitted",
    )
    protocol: Protocol = setting(
        "default",
        "default: search weights as calibrate does, for this objective; paper: as the paper says.",
        section="What is fitted",
    )

    alpha: float = setting(
        5.0, "First shape parameter of the Beta distribution of the rotation angles.", section="The search"
    )
    beta: float = setting(
        1.0, "Second shape parameter of the Beta distribution of the rotation angles.", section="The search"
    )
    theta_s: float = setting(0.9, "Largest angle of one rotation, in radians.", section="The search")
    ensemble_size: int | None = setting(
        None,
        "Number of tilted weights to average (n_e); 10 by default, and more where accuracy requires it, except under "
        "the protocol of the paper.",
        section="The search",
        low=1,
        note="10 and more",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.search(self.seed)  # ranges are checked there

    @property
    def printed(self) -> bool:
        """Whether searches follow the algorithm exactly as the paper prints it."""
        return self.protocol == "paper"

    @property
    def tilt_bias(self) -> bool:
        """Whether the bias is scaled with a tilted weight."""
        return not self.printed

    def search(self, seed: int) -> SearchSettings:
        """Return the search settings for a given seed."""
        return self.calibration(seed).for_search

    def calibration(self, seed: int, **words: Any) -> Settings:
        """Return the settings of an equivalent `calibrate` call, with overrides."""
        keywords: dict[str, Any] = {"search": "sparse", "map": "none", "seed": seed, "tilt_bias": self.tilt_bias}
        if self.printed:
            keywords["n_t"] = PAPER_N_T
        for name in ("objective", "bins", "alpha", "beta", "theta_s", "ensemble_size"):
            value = getattr(self, name)
            if value is not None:
                keywords[name] = value
        return Settings(**{**keywords, **words})

    @property
    def by_default(self) -> StudySettings:
        """These settings with the default protocol and search."""
        return replace(self, protocol="default", alpha=5.0, beta=1.0, theta_s=0.9, ensemble_size=None)
