"""The result of `shift`: class frequencies before and after, the evidence for them, and their effect."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.metrics import Interval, Metrics


@dataclass(frozen=True)
class ClassFrequency:
    """How frequent a class was, and is.

    Attributes:
        name: of the class, or its index.
        source: frequency that the model's probabilities are calibrated under, a fraction.
        target: frequency that is written, a fraction.
        interval: bootstrap interval of the estimate, fractions; null where the frequency was given.
    """

    name: str
    source: float
    target: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class ShiftEvidence:
    """What the samples without labels say for and against a change of class frequencies alone.

    Attributes:
        changed_p: how often noise alone makes as large a change of frequencies, a fraction.
        gain: log-likelihood of the estimate above that of the old frequencies, nats a sample.
        other: the other estimate, by class, fractions; null where it cannot be made.
        disagreement: total variation between the two estimates, a fraction; null where there is one only.
        disagreement_p: how often noise alone makes it as large, a fraction; null likewise.
        surprise: mean confidence less what the classes explain, from -1 to 1, no unit.
        surprise_p: how often noise alone makes it as large, a fraction.
        trusted: whether the result was to be written whatever these say.
    """

    changed_p: float
    gain: float
    other: tuple[float, ...] | None
    disagreement: float | None
    disagreement_p: float | None
    surprise: float
    surprise_p: float
    trusted: bool


@dataclass(frozen=True)
class ShiftEffect:
    """What the new frequencies do to labelled samples, which must come from the target.

    Attributes:
        data: what the samples are, in one line.
        before: metrics of the input model.
        after: metrics of the result.
        accuracy: paired difference of the accuracies, fractions.
        nll: paired difference of the NLLs, nats.
        distance: total variation between the frequencies of these labels and those that were written, a fraction.
    """

    data: str
    before: Metrics
    after: Metrics
    accuracy: Interval
    nll: Interval
    distance: float


@dataclass(frozen=True)
class Shift:
    """What `shift` wrote.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: path of the new file; empty if none was written.
        class_output: graph output that classifies.
        method: where the new frequencies come from: `em`, `bbse` or `given`.
        classes: frequencies of each class, in the model's order.
        data: what the labelled samples are, in one line.
        samples: their number, at least 1.
        target_data: what the samples without labels are; empty without.
        target_samples: their number.
        evidence: what they say; null without.
        effect: what labelled samples of the target say; null without.
        placed: where the change is: `bias` of the head, or `nodes` behind the scores.
        nodes: number of nodes that were added.
        max_difference: largest difference between a probability of the file and of the formula, a fraction.
        notes: what the user should know, in sentences.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    model: str
    model_sha256: str
    output: str
    class_output: str
    method: str
    classes: tuple[ClassFrequency, ...]
    data: str
    samples: int
    target_data: str
    target_samples: int
    evidence: ShiftEvidence | None
    effect: ShiftEffect | None
    placed: str
    nodes: int
    max_difference: float
    notes: tuple[str, ...]
    provider: str
