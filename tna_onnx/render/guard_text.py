"""Text of `guard` (what was added, what it promises and decides) and of `shift` (frequencies, evidence, effect)."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.numerics.metrics import Interval
from tna_onnx.results.guarding import (
    ClassDecision,
    ConfidenceCalibration,
    Decisions,
    DecisionScores,
    Guard,
    GuardInput,
    OperatingPoint,
)
from tna_onnx.results.shifting import ClassFrequency, Shift, ShiftEffect, ShiftEvidence

_MAX_DECIDED = 12  # classes of a decision, those of the lowest recall

_FEW_CLASSES = 5  # with the lowest coverage, that are listed

# By whether no threshold was chosen on the samples.
_FRESH = {
    True: ", held-out",
    False: ", the same samples, so no test of the promises; give --eval",
    None: "",
}


def guard_text(result: Guard) -> RenderableType:
    """What was added, what it promises, and what it decides on samples."""
    lines = [f"model    {result.model}, output '{result.class_output}'", *guard_lines(result)]
    changed = "no value changed"
    if result.max_change:
        changed = f"values changed by {result.max_change:.1e} at most"
    lines.append(f"checked  {changed} in other outputs; {result.nodes} nodes, {result.bytes:,} bytes more")
    lines += [f"note     {note}" for note in result.notes]
    lines.append(f"wrote    {result.output or 'nothing'}")
    return Group(*(Text(line) for line in lines))


def guard_lines(result: Guard) -> list[str]:
    """What thresholds come from, what was added, and what it decides."""
    source = f"data     {result.data}: thresholds from {result.samples:,} samples"
    if result.fitted_on:
        source += f"; what is fitted for them saw {result.fitted_on:,} others"
    lines = [source]
    for output in result.outputs:
        limit = ""
        if len(output.threshold) == 1 and output.threshold[0] is not None:
            limit = f" (threshold {output.threshold[0]:.6g})"
        lines.append(f"added    {output.name}: {output.promise}{limit}")
    if result.operating_point is not None:
        lines += [f"cost     {line}" for line in cost_lines(result.operating_point)]
    lines += [f"dial     {dial.name}: {_range(dial)}" for dial in result.inputs]
    return [*lines, *decision_lines(result.decisions)]


def _range(dial: GuardInput) -> str:
    if dial.role == "threshold":
        return "an input that may be left out; what a probability has to reach, by default the thresholds above"
    if dial.lowest is None:
        return "an input that may be left out; a positive number for each class, by default how frequent it is here"
    return (
        f"an input that may be left out; {dial.default:g} by default, tells levels from {dial.lowest:.3g} to "
        f"{dial.highest:.4g} apart"
    )


def cost_lines(point: OperatingPoint) -> Iterator[str]:
    """What thresholds by counting and by probability cost, and whether they disagree."""
    if point.probability_cost is None or point.cost_gain is None or point.lowest_cost is None:
        return
    places = ("", "")
    if point.by_probability is not None and point.by_counting is not None:
        places = (f" (threshold {point.by_probability:.4g})", f" (threshold {point.by_counting:.4g})")
    for name, cost, place in (
        ("probability", point.probability_cost, places[0]),
        ("counting, cross-fitted,", point.counting_cost, places[1]),
    ):
        if cost is not None:
            regret = max(0.0, cost - point.lowest_cost)
            yield f"by {name}{place}: {cost:.4g} a sample, {regret:.4g} above the lowest that thresholds reach here"
    low, high = point.cost_gain
    words = "disagree" if low > 0 else "counting is worse" if high < 0 else "agree"
    if low == high == 0:
        yield "no test of the probabilities: counting finds no other decisions than theirs"
        return
    yield f"both {words}: counting costs {low:.3g} to {high:.3g} less"


def decision_lines(decisions: Decisions) -> list[str]:
    """What a file decides on samples."""
    return [f"measured {line}" for line in _decision_parts(decisions)]


def _decision_parts(decisions: Decisions) -> Iterator[str]:
    yield f"on {decisions.data}{_FRESH[decisions.fresh]}"
    if decisions.calibration is not None:
        yield f"confidence: {off(decisions.calibration)}"
    if decisions.accepted is not None:
        text = f"accepted {per_cent(decisions.accepted)} of samples"
        if decisions.risk is not None and decisions.risk_interval is not None:
            text += f", of which {per_cent(decisions.risk)} wrong {between(decisions.risk_interval)}; without accept "
            text += f"{per_cent(1 - decisions.accuracy)}"
        yield text
    if decisions.coverage is not None and decisions.coverage_interval is not None:
        yield (
            f"sets hold the true class of {per_cent(decisions.coverage)} {between(decisions.coverage_interval)}; "
            f"{decisions.mean_set_size:.2f} classes on average, one in {per_cent(decisions.single_sets)}, "
            f"none in {per_cent(decisions.empty_sets)}"
        )
        if decisions.full_sets:
            share = per_cent(decisions.full_sets)
            yield f"vacuous: {share} of the sets hold all classes, which is true and says nothing"
    if decisions.class_coverage:
        covered = [(share, k) for k, share in enumerate(decisions.class_coverage) if share is not None]
        lowest = ", ".join(f"{k}: {per_cent(share)}" for share, k in sorted(covered)[:_FEW_CLASSES])
        yield f"lowest coverage by class: {lowest}"
    for group in decisions.by_confidence or ():
        yield (
            f"at a confidence of {group.low:.4f} to {group.high:.4f}, sets hold the true class of "
            f"{per_cent(group.coverage)}; {group.mean_set_size:.2f} classes on average"
        )
    if decisions.decision is not None:
        yield from _scored(decisions.decision)
    if decisions.alarms is not None:
        yield f"alarm in {per_cent(decisions.alarms)}"
    if decisions.detection is not None:
        detection = decisions.detection
        yield (
            f"unknown samples, {detection.data}: alarm in {per_cent(detection.detected)} "
            f"{between(detection.detected_interval)}; AUROC {detection.auroc:.4f}"
        )


def _scored(scores: DecisionScores) -> Iterator[str]:
    text = f"decision: macro F1 {scores.macro_f1:.4f}, balanced accuracy {per_cent(scores.balanced_accuracy)}, MCC "
    text += f"{scores.mcc:.4f}"
    if scores.undecided:
        text += f", undecided {per_cent(scores.undecided)}"
    if scores.cost is not None:
        text += f", cost {scores.cost:.4g} a sample"
    yield text
    for decided in sorted(scores.classes, key=_recall)[:_MAX_DECIDED]:
        yield f"decision {decided.name}: {recall_words(decided)}"
    if len(scores.classes) > _MAX_DECIDED:
        yield f"{len(scores.classes) - _MAX_DECIDED:,} further classes have a higher recall"


def _recall(decided: ClassDecision) -> float:
    return 2.0 if decided.recall is None else decided.recall


def recall_words(decided: ClassDecision) -> str:
    """Write recall, precision and false positive rate of a class."""
    parts = [
        f"{name} {per_cent(share)}" + (f" {between(interval)}" if interval is not None else "")
        for name, share, interval in (
            ("recall", decided.recall, decided.recall_interval),
            ("precision", decided.precision, decided.precision_interval),
            ("false positives", decided.false_positives, None),
        )
    ]
    return f"{', '.join(parts)}; {decided.samples:,} samples have it, {decided.decided:,} are decided so"


def off(calibration: ConfidenceCalibration) -> str:
    """Say how far the confidence is off."""
    ece = "(one sample: no interval)"
    if calibration.ece_interval is not None:
        ece = between(calibration.ece_interval)
    nll = "(too few errors for an interval)"
    if calibration.nll_interval is not None:
        low, high = calibration.nll_interval
        nll = f"({low:.4f} to {high:.4f})"
    return f"ECE {per_cent(calibration.ece)} {ece}, NLL of being right {calibration.nll:.4f} {nll}"


def per_cent(share: float | None) -> str:
    """Write a share in per cent; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def between(interval: tuple[float, float]) -> str:
    """Write the ends of an interval in per cent."""
    return f"({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"


_MAX_CLASSES = 20  # of more, those that change most

_METHODS = {
    "em": "estimated by EM",
    "bbse": "estimated by the black box",
    "given": "as given",
}

_PLACES = {"bias": "in the bias of the head; no node is new", "nodes": "in nodes behind the scores"}


def shift_text(result: Shift) -> RenderableType:
    """Which frequencies, how sure they are, and what they do."""
    lines = [f"model    {result.model}, output '{result.class_output}'", f"source   {result.data}"]
    if result.target_data:
        lines.append(f"target   {result.target_data}: class frequencies {_METHODS[result.method]}")
    else:
        lines.append(f"target   class frequencies {_METHODS[result.method]}")
    lines += [f"class    {line}" for line in _class_lines(result.classes)]
    if result.evidence is not None:
        lines += [f"tested   {line}" for line in _evidence_lines(result.evidence)]
    if result.effect is not None:
        lines += [f"measured {line}" for line in _effect_lines(result.effect)]
    lines.append(f"checked  {_PLACES[result.placed]}; probabilities within {result.max_difference:.1e} of the formula")
    lines += [f"note     {note}" for note in result.notes]
    lines.append(f"wrote    {result.output or 'nothing'}")
    return Group(*(Text(line) for line in lines))


def _class_lines(frequencies: tuple[ClassFrequency, ...]) -> Iterator[str]:
    listed = list(frequencies)
    if len(frequencies) > _MAX_CLASSES:
        listed = sorted(frequencies, key=lambda frequency: -abs(frequency.target - frequency.source))[:_MAX_CLASSES]
        yield f"the {_MAX_CLASSES} of {len(frequencies):,} that change most"
    width = max(len(frequency.name) for frequency in listed)
    for frequency in listed:
        text = f"{frequency.name:{width}}  {_per_cent(frequency.source)} -> {_per_cent(frequency.target)}"
        if frequency.interval is not None:
            text += f" ({100 * frequency.interval[0]:.2f} to {100 * frequency.interval[1]:.2f})"
        yield text


def _evidence_lines(evidence: ShiftEvidence) -> Iterator[str]:
    yield f"noise alone makes as large a change of frequencies with p = {evidence.changed_p:.2g}"
    if evidence.disagreement is not None and evidence.disagreement_p is not None:
        yield (
            f"EM and the black box differ by {100 * evidence.disagreement:.2f} points in all (p = "
            f"{evidence.disagreement_p:.2g})"
        )
    yield (
        f"mean confidence less what the classes explain: {100 * evidence.surprise:+.2f} points "
        f"(p = {evidence.surprise_p:.2g})"
    )


def _effect_lines(effect: ShiftEffect) -> Iterator[str]:
    yield f"on {effect.data}, which must come from the target"
    yield (
        f"accuracy {_per_cent(effect.before.accuracy)} -> {_per_cent(effect.after.accuracy)} "
        f"({_between(effect.accuracy, 100, 2)} points)"
    )
    yield f"NLL {effect.before.nll:.4f} -> {effect.after.nll:.4f} ({_between(effect.nll, 1, 4)})"
    yield f"ECE {_per_cent(effect.before.ece)} -> {_per_cent(effect.after.ece)}"
    yield f"its labels have other frequencies than the ones written by {100 * effect.distance:.2f} points in all"


def _per_cent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _between(interval: Interval, factor: float, digits: int) -> str:
    return f"{factor * interval.low:+.{digits}f} to {factor * interval.high:+.{digits}f}"
