"""The result of `guard`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decisions", "Guard", "GuardOutput"]


@dataclass(frozen=True)
class GuardOutput:
    """One new output of the model.

    Attributes:
        name: of the graph output.
        role: what it is: `confidence`, `accept`, `set`, `ood` or `ood_alarm`.
        promise: what it promises, and of which samples, in a sentence.
        threshold: what its score is compared with, no unit; one for each class where the promise is by class, null for
            a class that every set holds; none for a score.
    """

    name: str
    role: str
    promise: str
    threshold: tuple[float | None, ...]


@dataclass(frozen=True)
class Decisions:
    """What the written file decides on samples. Of an output that was not added, None.

    Attributes:
        data: what the samples are, in one line.
        fresh: whether no threshold was chosen on them.
        n: number of samples, at least 1.
        accuracy: as a fraction.
        accepted: samples that are accepted, as a fraction.
        risk: accepted samples that are classified wrong, as a fraction of the accepted; None without any.
        risk_interval: its exact confidence interval, fractions.
        coverage: sets that hold the true class, as a fraction.
        coverage_interval: its exact confidence interval, fractions.
        class_coverage: the same for the samples of each class, fractions; null for classes without samples.
        mean_set_size: classes in a set on average, in units of classes.
        empty_sets: sets without a class, as a fraction.
        single_sets: sets with one class, as a fraction.
        alarms: samples that raise the outlier alarm, as a fraction.
    """

    data: str
    fresh: bool
    n: int
    accuracy: float
    accepted: float | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None
    coverage: float | None = None
    coverage_interval: tuple[float, float] | None = None
    class_coverage: tuple[float | None, ...] | None = None
    mean_set_size: float | None = None
    empty_sets: float | None = None
    single_sets: float | None = None
    alarms: float | None = None


@dataclass(frozen=True)
class Guard:
    """What `guard` wrote.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: path of the new file; empty if none was written.
        class_output: graph output that classifies.
        outputs: what was added.
        data: what the samples are that the thresholds come from, in one line.
        samples: their number, at least 1.
        fitted_on: number of those that an outlier score was fitted to; its threshold comes from the others.
        decisions: what the file decides, on held-out data if they were given.
        nodes: number of nodes that were added, at least 1.
        bytes: number of bytes by which the file is larger.
        max_change: largest change of a value of an output that was there before, no unit.
        notes: what the user should know, in sentences.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    model: str
    model_sha256: str
    output: str
    class_output: str
    outputs: tuple[GuardOutput, ...]
    data: str
    samples: int
    fitted_on: int
    decisions: Decisions
    nodes: int
    bytes: int
    max_change: float
    notes: tuple[str, ...]
    provider: str
