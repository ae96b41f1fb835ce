"""The numbers behind the figures of a report; plain tuples, so that they go into JSON too.

With `bins` B, bin j holds j/B < p <= (j+1)/B, as in `numerics.metrics`; bin 0 holds 0 as well. "Shown data" are the
held-out samples if there are any, else the calibration samples, which were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.graph.difference import Difference
from tna_onnx.numerics.reliability import Bins, bin_of
from tna_onnx.results.risk_coverage import RiskCoverage

__all__ = [
    "Angles",
    "Averaged",
    "Bins",
    "ClassBins",
    "ClassResult",
    "Confusion",
    "Details",
    "Made",
    "Port",
    "Sample",
    "Scored",
    "Step",
    "bin_of",
]


@dataclass(frozen=True)
class Scored:
    """A candidate on some data.

    Attributes:
        objective: value of the objective: a fraction for ECE and AdaECE, nats for NLL; Brier has no unit.
        accuracy: accuracy as a fraction.
        bins: its reliability diagram.
    """

    objective: float
    accuracy: float
    bins: Bins


@dataclass(frozen=True)
class Step:
    """A candidate of the search, on both kinds of data.

    Attributes:
        angle: target of mRC, degrees.
        reached: mean mRC that the members reached, degrees.
        members: members averaged; 0 is the limit of many.
        calibration: scores on the calibration data.
        held_out: scores on the held-out data; None without such data.
    """

    angle: float
    reached: float
    members: int
    calibration: Scored
    held_out: Scored | None

    @property
    def shown(self) -> Scored:
        """On the shown data."""
        return self.held_out or self.calibration


@dataclass(frozen=True)
class Averaged:
    """The average of some members at the chosen angle.

    Attributes:
        members: members averaged, at least 1.
        accuracy: its accuracy before any map, a fraction.
    """

    members: int
    accuracy: float


@dataclass(frozen=True)
class Confusion:
    """A class that another one is taken for.

    Attributes:
        predicted: name of the predicted class.
        samples: samples for which it is predicted.
    """

    predicted: str
    samples: int


@dataclass(frozen=True)
class ClassResult:
    """How a model predicts one class.

    Attributes:
        predicted: samples for which it predicts the class.
        right: samples among these whose label it is.
        confused: what samples of the class are most often taken for, most samples first; at most three.
    """

    predicted: int
    right: int
    confused: tuple[Confusion, ...]


@dataclass(frozen=True)
class ClassBins:
    """One class: the probability that all samples give it, against how often it is their label.

    Attributes:
        name: name of the class.
        samples: samples whose label it is.
        before: diagram of the input model.
        after: diagram of the recalibrated model.
        result_before: predictions of the input model.
        result_after: predictions of the recalibrated model.
    """

    name: str
    samples: int
    before: Bins
    after: Bins
    result_before: ClassResult
    result_after: ClassResult


@dataclass(frozen=True)
class Angles:
    """Angles between features and class vectors of one weight, as shares of bins of 2 degrees from 0 to 180.

    Attributes:
        weight: `original`, `tilted` (one member) or `averaged`.
        predicted: share of each bin, with the vector of the predicted class; fractions.
        others: share of each bin, with the vectors of all other classes; fractions.
        length: mean length of the class vectors, in lengths of the original's.
    """

    weight: str
    predicted: tuple[float, ...]
    others: tuple[float, ...]
    length: float


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        row: row in the data, from 0.
        file: end of the path of its file; empty if it has none.
        label: name of its class.
        predicted: name of the predicted class.
        before: confidence of the input model, a fraction.
        after: confidence of the recalibrated model, a fraction.
        thumbnail: PNG as a data URI; empty if the sample is not an image.
    """

    row: int
    file: str
    label: str
    predicted: str
    before: float
    after: float
    thumbnail: str


@dataclass(frozen=True)
class Port:
    """An input of the model.

    Attributes:
        name: of the input.
        shape: lengths of its axes, the batch axis first; null for any length.
        dtype: as NumPy calls it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Made:
    """When and from what a result was made, and how its file is called.

    Attributes:
        date: when it began, in UTC, as ISO 8601 has it.
        seconds: how long it took up to the figures, in seconds.
        calibration_sha256: SHA-256 of the calibration samples and their labels.
        held_out_sha256: SHA-256 of the held-out samples and their labels; empty without any.
        inputs: inputs of the model.
        output: graph output that classifies.
        output_kind: what that output holds.
        mapped: whether the output is a dictionary from class to probability for each sample (ZipMap).
    """

    date: str
    seconds: float
    calibration_sha256: str
    held_out_sha256: str
    inputs: tuple[Port, ...]
    output: str
    output_kind: str
    mapped: bool


@dataclass(frozen=True)
class Details:
    """The numbers behind the figures of a report.

    Attributes:
        data: the shown data, in one line: held-out samples if there are any, else the calibration samples.
        held_out: whether they are held-out samples.
        preprocessing: what was done to their images; None where values are used as they are.
        device: device that was asked for.
        before: top-label diagram of the input model, on the samples of `Report.comparison`.
        after: top-label diagram of the recalibrated model, on the same samples.
        risk_before: risk and coverage of the input model, on the same samples.
        risk_after: risk and coverage of the recalibrated model, on the same samples.
        steps: candidates in the order of the search.
        chosen: index of the chosen one, from 0.
        averages: fewer and fewer members at the chosen angle, down to one, fewest first, on the shown data; empty
            without a tilted weight and in the limit of many.
        untilted: accuracy of the weight before any tilt on the same data, a fraction; 0 beside no averages.
        with_map: whether candidates were scored after a map of their own (complete search).
        classes: diagrams of each class, on the shown data.
        angles: angles of features and class vectors under the original weight, one tilted weight and their average, on
            the shown data; empty where there is no plain head.
        angle_samples: samples that these angles come from.
        overconfident: wrong predictions with the highest confidence after, on the shown data.
        underconfident: right predictions with the lowest confidence after, on the shown data.
        changes: what differs between the two files.
        made: when and from what the result was made.
    """

    data: str
    held_out: bool
    preprocessing: dict[str, object] | None
    device: str
    before: Bins
    after: Bins
    risk_before: RiskCoverage
    risk_after: RiskCoverage
    steps: tuple[Step, ...]
    chosen: int
    averages: tuple[Averaged, ...]
    untilted: float
    with_map: bool
    classes: tuple[ClassBins, ...]
    angles: tuple[Angles, ...]
    angle_samples: int
    overconfident: tuple[Sample, ...]
    underconfident: tuple[Sample, ...]
    changes: tuple[Difference, ...]
    made: Made
