"""The report on a recalibration (`report_on`), and notes on what is unusual about the run (`notes_on`)."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tna_onnx.data.images.known_recipes import source_search
from tna_onnx.data.images.preprocess import recipe_text
from tna_onnx.data.several import PositionSource
from tna_onnx.errors import listed
from tna_onnx.graph.load import PREFIX
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.tensors import epsilon, numpy_type
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.numerics.metrics import Metrics, metric_value, sample_losses
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.scores import SUM_TOLERANCE, SampleScores, mean_and_error
from tna_onnx.pipeline.comparing import Compared, alternative, classes_of, kept_decisions
from tna_onnx.pipeline.crossfit import SEEN
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.methods import ENOUGH, FOLDS, Method, Reason
from tna_onnx.pipeline.sample_checks import LabelCheck
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.pipeline.writing import Shipped, Writing, versions
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.gates import differences_text, samples_text
from tna_onnx.results.measured import resolution_notes, subgroup_notes
from tna_onnx.results.report import Changes, Comparison, CurvePoint, MethodScores, Report, Verification, compare_scores
from tna_onnx.results.verdict import ClassRecall, Recall, Standing

# Steps of a quantised output that a reader should know of: a log loss sees them.
_COARSE_OUTPUT = 1e-3

# Share of changed predictions from which on users should know.
_MANY_CHANGED = 0.01

# Why a method with a lower loss was not chosen, in the order of a note.
_REASONS: dict[Reason, str] = {
    "predictions": "would change predictions at too high a cost",
    "accuracy": "would cost accuracy",
    "error": "would raise the ECE",
}


def report_on(
    writing: Writing,
    outcome: Outcome,
    compared: Compared,
    after: Shipped,
    labels: LabelCheck,
    rewritten: Rewritten,
    verification: Verification,
) -> Report:
    """Put a report together, gates included."""
    task = writing.task
    settings = task.settings
    changes = Changes(
        str(task.output or ""),
        tensors=tuple(sorted(rewritten.changed)),
        added=tuple(sorted(rewritten.added)),
        nodes=tuple(sorted(rewritten.nodes)),
    )
    protected = settings.predictions != "change" and not writing.predictions_are_free
    missed = _missed(task, compared, protected=protected)
    # a missed gate leaves no file, so the report names none
    is_written = not missed and not task.job.dry_run
    drift = task.quantization_drift(outcome.weight)
    cross_fitted = compared.comparison.how == "cross-fitted"
    notes = [*notes_on(task, outcome, compared, changes, drift, labels.warnings)]
    notes += [moved.text for moved in verification.moved]
    return Report(
        model=task.model.name,
        model_sha256=task.model.sha256,
        output=changes.target if is_written else "",
        head=getattr(task.head, "node", ""),
        features=getattr(task.head, "n_features", 0),
        classes=task.readout.n_classes,
        resolution=task.readout.resolution,
        preprocessing=task.source.recipe(),
        recipe_search=source_search(task.source),
        provider=task.provider,
        versions=versions(),
        search=settings.resolved_search,
        objective=settings.objective,
        settings={
            **settings.recorded,
            "device": task.job.device,
            "computed_on": task.computed_on,
            "batch_size": task.batch_size,
            "confidence_level": settings.confidence_level,
            "gates": dataclasses.asdict(task.job.gates),
        },
        map=outcome.map,
        method=outcome.label,
        folded=writing.folding(outcome) is not None,
        parameters=outcome.parameters,
        methods=tuple(_methods(outcome, settings.bins)),
        changing=getattr(outcome.changing, "label", ""),
        alternative=alternative(task, outcome),
        angle=outcome.chosen.angle,
        reached=outcome.chosen.reached,
        ensemble_size=outcome.chosen.ensemble_size,
        rotations=outcome.chosen.rotations,
        curve=tuple(_curve(task, outcome)),
        calibration=_fitted_comparison(task, outcome),
        comparison=compared.comparison,
        recall=compared.recall,
        reliability=Reliability.of(compared.before, compared.after, settings.bins),
        bin_free_before=BinFree.of(compared.before, settings.bins, settings.seed),
        bin_free_after=BinFree.of(compared.after, settings.bins, settings.seed, cross_fitted=cross_fitted),
        changed_predictions=compared.changed_labels,
        kept_label=compared.kept_label,
        labels=LabelMetrics.of(
            compared.before, compared.after, settings.bins, task.opened.names, getattr(outcome.fitted, "shared", ())
        ),
        subgroups=compared.subgroups,
        protected=protected,
        quantization_drift=drift,
        recalibrated=rewritten.proto if is_written and not changes.target else None,
        changes=changes,
        dry_run=task.job.dry_run,
        verification=verification,
        classes_unseen=labels.coverage.unseen,
        classes_scarce=labels.coverage.scarce,
        missed=missed,
        kept_decisions=kept_decisions(task, outcome, compared, after),
        notes=tuple(notes),
    )


def _fitted_comparison(task: Task, outcome: Outcome) -> Comparison:
    """Compare the calibration samples, which were fitted."""
    settings = task.settings
    labels = np.asarray(task.calibration.table.labels)
    return compare_scores(
        task.source.describe(), "fitted", outcome.before.labelled(labels), outcome.after.labelled(labels),
        settings.bins, settings.seed, settings.level, same_predictions=outcome.keeps_predictions,
        classes=classes_of(task, task.calibration),
    )  # fmt: skip


def _curve(task: Task, outcome: Outcome) -> Iterator[CurvePoint]:
    """Yield all candidates of the search."""
    settings = task.settings
    for candidate in outcome.candidates:
        yield CurvePoint(
            angle=candidate.angle,
            ensemble_size=candidate.ensemble_size,
            rotations=candidate.rotations,
            objective=metric_value(candidate.scores, settings.objective, settings.bins),
            accuracy=candidate.scores.mean("hit"),
            parameters=candidate.parameters,
            reached=candidate.reached,
        )


def _methods(outcome: Outcome, bins: int) -> Iterator[MethodScores]:
    """Yield the methods that were compared, with their distance to the one of the lowest NLL."""
    if not outcome.scores:
        return
    losses = sample_losses(min(outcome.scores.values(), key=lambda scores: scores.mean("nll")))
    for method, scores in outcome.scores.items():
        error = mean_and_error(sample_losses(scores) - losses, outcome.before.clusters, outcome.before.weights)[1]
        yield MethodScores(
            method=method.label,
            metrics=Metrics.of(scores, bins),
            words=method.words,
            error=float(error),
            keeps_predictions=method.keeps_order,
            folds=method.folds,
            left_out=outcome.left_out.get(method, ""),
        )


def _missed(task: Task, compared: Compared, *, protected: bool) -> tuple[str, ...]:
    """Return a line for each gate that the result misses."""
    gates = task.job.gates
    comparison = compared.comparison
    after = comparison.after
    where = comparison.samples
    still_off = protected and after.positive is not None and after.positive.off
    return (
        *gates.limits_missed(after, where),
        *gates.changes_missed(comparison.differences, task.settings.objective, after, where, still_off=still_off),
        *gates.classes_missed({loss.name: loss.after for loss in compared.recall.classes}, samples_text(after, where)),
    )


def notes_on(
    task: Task, outcome: Outcome, compared: Compared, changes: Changes, drift: float | None, labels: Sequence[str]
) -> Iterator[str]:
    """Yield what is unusual about a run."""
    if task.fallback:
        yield f"device auto: CUDA was not obtained, ran on the CPU: {task.fallback}"
    yield from labels
    yield from task.data_notes
    for collected in filter(None, (task.calibration, task.held_out)):
        if isinstance(collected.source, PositionSource) and collected.source.clusters is not None:
            yield (
                f"{collected.source.describe()}: each labelled position counts as one; intervals and folds are over "
                "whole samples, because positions of a sample depend on one another"
            )
    # the output of an unchanged model is its input, functions and all
    if task.model.inlined and not outcome.unchanged:
        yield f"model-local functions were inlined: {', '.join(task.model.inlined)}"
    if task.head is None:
        yield from _scores_notes(task)
    else:
        yield from _weight_notes(task, outcome, changes, drift)
    yield from _output_notes(task, outcome)
    yield from _choice_notes(task, outcome)
    if task.readout.multi_label:
        yield from _label_notes(task, getattr(outcome.fitted, "shared", ()))
    yield from _change_notes(task, outcome, compared)
    if task.job.dry_run:
        yield (
            f"dry run, no file was written; a run would write {changes.target or 'the model in memory'} with changed "
            f"tensors: {listed(changes.tensors) or 'none'}; new tensors: {listed(changes.added) or 'none'}; new nodes: "
            f"{listed(changes.nodes) or 'none'}"
        )


def _scores_notes(task: Task) -> Iterator[str]:
    """Say what is calibrated where there is no linear head."""
    readout = task.readout
    yield f"output '{readout.output}' is calibrated as it is ({readout.holds}), without a linear head"
    maker = task.model.producer(readout.logits)
    if readout.activation == "softmax" and maker is not None and maker.op_type == "Softmax":
        yield (
            f"output '{readout.output}' is a Softmax of a Softmax, so its logits lie in 0 to 1; if that is a mistake, "
            "export the model with one Softmax"
        )


def _weight_notes(task: Task, outcome: Outcome, changes: Changes, drift: float | None) -> Iterator[str]:
    """Say how a weight is stored that is not a float tensor of its own."""
    assert task.head is not None  # noqa: S101 - it holds the weight
    stored = task.head.stored_weight
    if stored.integers and outcome.weight is task.weight:
        stored_as = ""
        if stored.quantized is not None:
            stored_as = f" ({stored.quantized.dtype})"
        yield f"the weight is quantised in the file{stored_as} and stays as it is"
    elif stored.quantized is not None:
        kind = "with one scale" if stored.quantized.axis is None else "per class"
        yield (
            f"the weight was quantised anew ({stored.quantized.dtype}, {kind}): that moves a probability by at most "
            f"{drift or 0:.2g}; --quantized-head float keeps it in float"
        )
    elif stored.shared and any(name.startswith(f"{PREFIX}/weight") for name in changes.added):
        yield (
            f"'{stored.read_as}' is quantised, computed or read elsewhere too: the head was given a float tensor of "
            "its own"
        )


def _output_notes(task: Task, outcome: Outcome) -> Iterator[str]:
    """Say what the output cannot express, and what came in."""
    readout = task.readout
    before = outcome.before
    yield from resolution_notes(readout.resolution, 2 if readout.multi_label else readout.n_classes)
    if readout.holds == "probabilities" and not readout.multi_label:
        least = np.finfo(numpy_type(readout.logits_type)).tiny
        cap = -np.log(np.float64(least))
        # to the rounding of this logarithm, and of a sum that is nearly 1
        count = np.count_nonzero(before.nll > cap * (1 - epsilon(readout.logits_type)) - SUM_TOLERANCE)
        if count:
            yield (
                f"{count:,} of {len(before.nll):,} labels have a probability of 0, or below {least:.0e}: the log loss "
                f"before is capped at {cap:.0f} nats for these; ignore how far it falls"
            )
        if count and np.all(before.confidence == 1):
            yield "every confidence is 1: the model only names a class, so a map gives each class one confidence"
    if readout.output_step >= _COARSE_OUTPUT:
        yield (
            f"the model rounds its probabilities to steps of {readout.output_step:.2g}, so small ones become 0; "
            "the scores here are those before rounding, and `tna-onnx evaluate` scores the rounded ones"
        )
    if readout.slack and not outcome.unchanged:
        yield (
            f"a Clip or constant behind the probabilities of '{readout.output}' stays: it moves a calibrated "
            f"probability by up to {readout.slack:.2g}"
        )
    recipe = task.source.recipe()
    if recipe is not None:
        accuracy = before.mean("hit")
        yield f"preprocessing: {recipe_text(recipe)}; accuracy of the input model with it {100 * accuracy:.2f} %"


def _choice_notes(task: Task, outcome: Outcome) -> Iterator[str]:
    """Say what was chosen among what, and what could not be."""
    if len(outcome.scores) > 1:
        yield _why(task, outcome)
    if outcome.changing is not None:
        yield _kept_note(task, outcome, outcome.changing)
    by_reason: dict[str, list[Method]] = {}
    for method, why in outcome.failed.items():
        # fold and map stand before the reason
        by_reason.setdefault(why.rpartition(": ")[2], []).append(method)
    for methods in by_reason.values():
        labels = ", ".join(method.label for method in methods)
        yield f"{labels} are left out, because they could not be fitted {outcome.failed[methods[0]]}"
    settings = task.settings
    members = outcome.chosen.ensemble_size
    if task.job.needs_head:
        confidence, accuracy = (outcome.before.mean(name) for name in ("confidence", "hit"))
        if confidence < accuracy:
            ending = "--map ts can raise them" if outcome.map == "none" else "the map raises them"
            yield (
                f"the model is underconfident on these data: mean confidence {100 * confidence:.1f} %, accuracy "
                f"{100 * accuracy:.1f} %; a tilt only lowers confidences; {ending}"
            )
    # asked for by name, and not done
    if task.job.needs_head and outcome.chosen.angle == 0:
        yield (
            "turning the last layer did not help: no tilted weight was better than the untilted one within the "
            "accuracy constraint"
        )
    elif outcome.chosen.angle and members != settings.for_search.ensemble_size:
        yield (
            f"the new last layer is the average of {members or 'infinitely many'} tilted copies of the old one, "
            "because fewer copies cost accuracy or did not help"
        )


def _why(task: Task, outcome: Outcome) -> str:
    """Say what was chosen among what: the best of those that no rule left out, and what was left out though better."""
    settings = task.settings
    values = {
        method: metric_value(scores, settings.objective, settings.bins) for method, scores in outcome.scores.items()
    }
    least = min(value for method, value in values.items() if method not in outcome.left_out)
    better = sorted((method for method in values if values[method] < least), key=lambda method: values[method])
    rule = "the simplest among the best was chosen"
    if outcome.by_likelihood:
        rule = "a likelihood ratio chose"
    kinds = {replace(method, step=0) for method in outcome.scores}  # one strength of each
    text = f"of {len(kinds)} methods compared on all folds, {rule}: {outcome.words}"
    for reason, verb in _REASONS.items():
        words = [method.words for method in better if outcome.left_out.get(method) == reason]
        if words:
            text += f"; {' and '.join(words[:2])} did better but {verb}"
    return text


def _kept_note(task: Task, outcome: Outcome, changing: Method) -> str:
    """Say what a change of predictions would gain and cost, where they are kept though it would gain."""
    before = outcome.before
    after = outcome.scores[changing]
    recall = Recall.of(before, after, task.opened.class_names(task.source))
    nll, accuracy = METRICS["nll"], METRICS["accuracy"]
    gains = (
        f"{nll.label} {nll.change(after.mean('nll') - outcome.scores[outcome.method].mean('nll'))}, "
        f"accuracy {accuracy.change(after.mean('hit') - before.mean('hit'))} points, "
        f"balanced accuracy {accuracy.change(recall.balanced.difference)} points"
    )
    cost = ""
    scarce = _scarce(before, recall)
    unknown = set(scarce)  # of 20,000 classes most may be
    measured = [one for one in recall.classes if one not in unknown]
    lowest = min(measured, key=lambda one: one.difference.difference, default=None)
    if lowest is not None and lowest.difference.difference < 0:
        kind = "label" if task.readout.multi_label else "class"
        cost = f"; {kind} {lowest.name} would lose {-100 * lowest.difference.difference:.2f} points of recall"
    if scarce:
        cost += f"; the recall of {_unknown(scarce)}"
    return (
        f"predicted classes are kept; --predictions change would take {changing.label} (cross-validated, against "
        f"{outcome.label}: {gains}{cost})"
    )


def _scarce(before: SampleScores, recall: Recall) -> list[ClassRecall]:
    """Return the classes with too few samples to show what happens to their recall; none of several labels a sample."""
    if before.predicted is not None:
        return []
    counts = Recalls.of(before, before).independent
    return [one for one, count in zip(recall.classes, counts, strict=True) if count < ENOUGH]


def _unknown(classes: Sequence[ClassRecall]) -> str:
    names = listed(one.name for one in classes)
    return f"{names} cannot be known: fewer than {ENOUGH} independent samples"


def _label_notes(task: Task, shared: Sequence[int]) -> Iterator[str]:
    """Say what the numbers are where a sample has several labels, and which labels were not fitted by themselves."""
    count = task.readout.n_classes
    yield (
        f"{count:,} labels, each measured by itself: NLL (log loss), Brier and ECE are means over labels, and accuracy "
        "is the share of labels that are right; intervals and folds are over whole samples"
    )
    if shared:
        names = task.opened.names_or_numbers
        yield (
            f"{len(shared):,} of {count:,} labels share one temperature, because they have too few samples for a fit "
            f"of their own or scores that do not rise with the label: {listed(names[c] for c in shared)}"
        )


def _change_notes(task: Task, outcome: Outcome, compared: Compared) -> Iterator[str]:
    """Say what the result changes for the worse, and of which samples the numbers are."""
    if compared.kept_label:
        yield compared.kept_label.text
    if compared.changed_labels > _MANY_CHANGED:
        # what was asked for by name has no say there
        advice = "; --predictions keep changes none" if outcome.scores else ""
        predictions = "labels" if task.readout.multi_label else "classes"
        yield f"{100 * compared.changed_labels:.1f} % of the predicted {predictions} change{advice}"
    labelled = compared.before.labelled(np.asarray(task.reported.table.labels))
    if compared.changed_labels and (scarce := _scarce(labelled, compared.recall)):
        yield f"predicted classes change; the recall of {_unknown(scarce)}"
    differences = compared.comparison.differences
    standing = Standing.of(differences, task.settings.objective)
    for name in standing.worse:
        yield f"{JUDGED[name].label} is significantly worse than the input's"
    cross_fitted = compared.comparison.how == "cross-fitted"
    if cross_fitted:
        yield _cross_fitted_note(outcome, compared)
    if compared.in_order:
        yield (
            f"{task.reported.source.describe()}: samples next to one another err alike (z {compared.in_order:.1f}), "
            "like those of one person, device or recording; intervals are then too narrow. Name the column of groups "
            "by --group-column"
        )
    samples = len(outcome.before)
    validated = bool(outcome.scores) or (cross_fitted and outcome.fitted is not None)
    if len(outcome.candidates[0].scores) < samples or (samples > SEEN and validated):
        yield (
            f"the search, and fits that are cross-validated, see {SEEN:,} samples at most, at random; all {samples:,} "
            "are scored"
        )
    parts = task.reported.source.sample_info.get("by")
    if parts is not None:
        yield from subgroup_notes(parts, compared.subgroups, task.settings.confidence_level)
    # otherwise a worse result is an error, and needs no note
    if standing.word == "worse" and task.job.gates.require == "nothing":
        text = differences_text(differences, standing.worse)
        yield f"the result is significantly worse than the input: {text}; --require nothing lets it pass"


def _cross_fitted_note(outcome: Outcome, compared: Compared) -> str:
    """Say what the numbers are of, where the folds did not all choose what is in the file."""
    text = f"no --eval data: before and after are cross-fitted on the calibration data ({FOLDS} folds)"
    counts = Counter(compared.folds)
    if set(counts) <= {outcome.label}:
        return text
    text += f"; the folds chose {', '.join(f'{label} ({n} of {FOLDS})' for label, n in counts.most_common())}"
    if compared.kept_label:
        return text
    text += f", so the accuracy of the file ({outcome.label}) may differ"
    if outcome.keeps_predictions:
        text += "; the file changes no predicted class"
    return text
