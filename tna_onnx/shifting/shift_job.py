"""Opening the inputs of `shift`: its job, the checked model and data, and the class frequencies that the user states.

Class frequencies are `uniform`, numbers, or a file: JSON, a list of C numbers in the model's order or an object
{class: number}; or text, with one number a line in that order, or `class,number` a line, where a header line is
skipped. Classes are referred to by name, if the model's names are known, or by index.

`off_centre` checks whether probabilities are right on average for each class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.choices import Limits
from tna_onnx.data.digest import overlap_of, read_sketch, sketch_overlap
from tna_onnx.data.foreign import parse_json, read_text, text_lines
from tna_onnx.data.labels import listed
from tna_onnx.data.options import Data
from tna_onnx.data.source import source_notes
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.head_check import Probed, check_readout
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, provenance
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.outputs import ClassOutput, require_one_prediction
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.maps import MAPS
from tna_onnx.pipeline.classifier import Classifier, Opened, read_classifier
from tna_onnx.pipeline.job import FileJob
from tna_onnx.pipeline.sample_checks import DigestedSamples
from tna_onnx.runtime import parse_device
from tna_onnx.shifting.shift_settings import ShiftSettings


@dataclass(frozen=True, eq=False)
class ShiftJob(FileJob):
    """The request for new class frequencies: `calib` is like the training data, `held_out` like the data to come.

    Attributes:
        target: samples without labels of the data to come; None where their frequencies are given.
        settings: where the frequencies come from.

    Raises:
        UsageError: frequencies that are both given and to be estimated, or neither.
    """

    target: Data | None = None
    settings: ShiftSettings = field(default_factory=ShiftSettings)

    def __post_init__(self) -> None:
        ways = (self.target is not None, self.settings.target_prior is not None, bool(self.settings.only))
        if sum(ways) != 1:
            raise UsageError(
                "expected either class frequencies (--target-prior FILE or uniform), samples without labels to "
                "estimate them on (--target-data), or the classes that can occur (--only CLASS,...)"
            )


# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}

_MIN_SHARED = 2  # one equal sample is chance


@dataclass(frozen=True, eq=False)
class ShiftSamples(Opened):
    """The model, and labelled samples of the data that it was made for, as `source`.

    Attributes:
        probed: where its scores are.
        unlabelled: samples of the target without labels; None where its frequencies are given.
    """

    probed: Probed
    unlabelled: Source | None


def open_shift(job: ShiftJob) -> ShiftSamples:
    """Open model and data, cheapest first.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError: see `tna_onnx.shift`.
    """
    check_batch_size(job.batch_size)
    model, output = read_classifier(job.model, job.options)
    _refuse_earlier_work(model)
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    readout = _readout(model, job.options, output)
    device = parse_device(job.device)
    opened = OpenModel(model, readout, device)
    names = job.calib.class_names(model.said_of_classes, output.labels, output.n_classes)
    classifier = Classifier(model, output, device, opened.session, opened.inputs, names, opened.preparation)
    _, source = classifier.open(job.calib)
    # labels that the samples of the target bring are not read: an estimate must not know them
    unlabelled = classifier.open_if(job.target, labels=False)
    held_out = classifier.open_if(job.held_out)
    notes = _leak_notes(model, source, unlabelled, held_out, job.calib)
    notes += source_notes(source)
    if unlabelled is not None:
        notes += source_notes(unlabelled)
    size = choose_batch_size(job.batch_size, opened.session, [output.name], source)
    notes += batch_size_notes(job.batch_size, size)
    probed = check_readout(opened, readout, opened.session, source, size)
    notes += probed.notes
    return ShiftSamples(classifier, source, held_out, size, notes, probed, unlabelled)


def _refuse_earlier_work(model: Model) -> None:
    entries = provenance(model)
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in entries:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")


def _readout(model: Model, options: ModelOptions, output: ClassOutput) -> Readout:
    """Return where the scores are, also behind a map that this package added."""
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    head = None if options.head == output.name else options.head
    return find_readout(model, head, name, kind)


def _leak_notes(
    model: Model, source: Source, unlabelled: Source | None, held_out: Source | None, data: Data
) -> tuple[str, ...]:
    """Refuse samples that serve two purposes that exclude each other; note harmless overlaps."""
    calib = DigestedSamples.of(source)
    notes = []
    if unlabelled is not None:
        target = DigestedSamples.of(unlabelled)
        notes += _earlier_notes(model, calib, data.limits)
        _refuse_shared(target, calib, data.limits, "labelled samples of --calib, so they tell nothing of a target")
        if _seen_before(model, target, data.limits):
            raise DataError(f"{target.name}: {model.name} was recalibrated on these samples; give those of the target")
    if held_out is not None:
        judging = DigestedSamples.of(held_out)
        reason = "samples of --calib too; --eval must come from the target, as its samples will"
        _refuse_shared(judging, calib, data.limits, reason)
        if unlabelled is not None and overlap_of(judging.digests, target.digests).shared:
            notes.append(f"{judging.name}: some of these samples gave the class frequencies too, without their labels")
    return tuple(notes)


def _earlier_notes(model: Model, calib: DigestedSamples, limits: Limits) -> list[str]:
    """Look for samples that the model was recalibrated on: their confusion matrix looks better than it is.

    Raises:
        DataError: the recalibration fitted more than a number for each class.
    """
    if not _seen_before(model, calib, limits):
        return []
    entries = provenance(model)
    name = entries.get("map", "")
    is_simple = name == "none" or (name in MAPS and MAPS[name].few_parameters)
    if is_simple and entries.get("angle_degrees") in ("0", "0.0"):
        return [
            f"{calib.name}: {model.name} was recalibrated on these samples, by one number a class at most; other ones "
            "would be better"
        ]
    raise DataError(
        f"{calib.name}: {model.name} was recalibrated on these samples ({entries.get('method', '')}), and looks better "
        "on them than it is, so their confusion matrix is not that of new samples; give others, or calibrate with "
        "--map bias"
    )


def _seen_before(model: Model, samples: DigestedSamples, limits: Limits) -> bool:
    entries = provenance(model)
    if entries.get("calibration_form", samples.form) != samples.form or limits.overlap >= 100:
        return False
    overlap = sketch_overlap(samples.digests, read_sketch(entries.get("calibration_sketch", "")))
    return overlap.shared >= _MIN_SHARED and 100 * overlap.share > limits.overlap


def _refuse_shared(samples: DigestedSamples, calib: DigestedSamples, limits: Limits, reason: str) -> None:
    if samples.form != calib.form:
        return
    overlap = overlap_of(samples.digests, calib.digests)
    if overlap.shared >= _MIN_SHARED and 100 * overlap.share > limits.overlap:
        raise DataError(
            f"{samples.name}: {overlap.shared:,} of {overlap.n:,} samples ({overlap.share:.2%}) are {reason}; remove "
            "them. Where equal samples are to be expected, --data-limit overlap=PERCENT allows them"
        )


UNIFORM = "uniform"

# Figures rounded to three digits add up to 1 within this.
_SUM_TOLERANCE = 2e-3

_ADVICE = "give one positive number for each class, which add up to 1"


def read_prior(prior: Any, names: Sequence[str] | None, n_classes: int, option: str, limits: Limits) -> NDArray[Any]:
    """Return (C,) frequencies, float64, which add up to 1.

    Args:
        prior: see `ShiftSettings`.
        names: of the classes, if known.
        n_classes: number of classes C.
        option: what messages call the option.
        limits: how large a file may be.

    Raises:
        UsageError: there is no such file.
        DataError: the file cannot be read; a wrong number of numbers, an unknown class, or a number that is no
            frequency.
    """
    where = option
    if isinstance(prior, str) and prior == UNIFORM:
        return np.full(n_classes, 1 / n_classes)
    if isinstance(prior, (str, Path)):
        where = f"{prior}"
        prior = _from_file(Path(prior), option, limits)
    if isinstance(prior, Mapping):
        prior = _by_class(prior, names, n_classes, where)
    return _checked(prior, n_classes, where)


def restricted(source: NDArray[np.float64], only: Sequence[str], names: Sequence[str] | None) -> NDArray[np.float64]:
    """Return frequencies (C,) that are 0 but for some classes, whose ratios stay.

    Raises:
        DataError: an unknown class.
    """
    known = _known_names([*map(str, only)], names, len(source), "--only")
    kept = np.isin(known, [*map(str, only)])
    target: NDArray[np.float64] = np.where(kept, source, 0.0) / source[kept].sum()
    return target


def _from_file(path: Path, where: str, limits: Limits) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; {where} takes '{UNIFORM}' or a file of class frequencies")
    text = read_text(path, limits)
    if path.suffix.lower() == ".json":
        return parse_json(text, str(path), "write a list of numbers")
    lines = [line.strip() for line in text_lines(text) if line.strip()]
    cells = _below_header([[cell.strip() for cell in line.rsplit(",", 1)] for line in lines])
    if cells and all(len(row) == 2 for row in cells):
        twice = [name for name, _ in cells if sum(name == second for second, _ in cells) > 1]
        if twice:
            raise DataError(f"{path}: class {twice[0]!r} has several lines; {_ADVICE}")
        return {name: _number(value, str(path)) for name, value in cells}
    return [_number(",".join(row), str(path)) for row in cells]


def _below_header(cells: list[list[str]]) -> list[list[str]]:
    """Return the rows without one that names the columns: its last cell is no number, and all others' are."""
    numbers = [_is_number(row[-1]) for row in cells]
    if len(cells) > 1 and not numbers[0] and all(numbers[1:]):
        return cells[1:]
    return cells


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where}: expected a number, found {text[:80]!r}; {_ADVICE}") from error


def _by_class(frequencies: Mapping[Any, Any], names: Sequence[str] | None, n_classes: int, where: str) -> list[Any]:
    keys = [str(key) for key in frequencies]
    names_known = _known_names(keys, names, n_classes, where)
    missing = [name for name in names_known if name not in keys]
    if missing:
        raise DataError(f"{where}: no number for the classes {listed(missing)}; {_ADVICE}")
    values = dict(zip(keys, frequencies.values(), strict=True))
    return [values[name] for name in names_known]


def _known_names(keys: Sequence[str], names: Sequence[str] | None, n_classes: int, where: str) -> list[str]:
    """Return what the C classes are called by keys: names or indices.

    Raises:
        DataError: a key is neither.
    """
    indices = [str(k) for k in range(n_classes)]
    names_known = indices
    # names go first: a class may be called "1" and not be the one with that index
    if names is not None and (set(keys) <= set(names) or not set(keys) <= set(indices)):
        names_known = list(names)
    unknown = [key for key in keys if key not in names_known]
    if unknown:
        raise DataError(f"{where}: unknown classes {listed(unknown)}; the model's classes are {listed(names_known)}")
    return names_known


def _checked(raw: Any, n_classes: int, where: str) -> NDArray[Any]:
    values = list(raw) if isinstance(raw, (Sequence, np.ndarray)) else None
    if values is None or any(isinstance(v, bool) or not isinstance(v, (int, float, np.number)) for v in values):
        raise DataError(f"{where}: expected numbers, found {str(raw)[:80]!r}; {_ADVICE}")
    if len(values) != n_classes:
        raise DataError(f"{where}: {len(values)} numbers for a model with {n_classes} classes; {_ADVICE}")
    prior = np.array([float(value) for value in values])
    if not np.all(np.isfinite(prior)) or np.any(prior < 0):
        wrong = int(np.argmin(np.where(np.isfinite(prior), prior, -math.inf)))
        raise DataError(f"{where}: class {wrong} has the frequency {prior[wrong]:g}; {_ADVICE}")
    if np.any(prior == 0):
        raise DataError(
            f"{where}: class {int(np.argmin(prior))} has the frequency 0, which would rule it out whatever the model "
            "sees; give a small number in its place, or say which classes can occur with --only"
        )
    total = float(prior.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        hint = "; if these are counts, divide them by their sum" if total > 1 + _SUM_TOLERANCE else ""
        raise DataError(f"{where}: the numbers add up to {total:.6g}; expected 1{hint}")
    return prior / total


# Over all classes, a calibrated model gets a note once in a hundred runs; and only where it matters.
_LEVEL = 0.01
_LARGE = 0.1


def off_centre(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], source: NDArray[np.float64], names: Sequence[str]
) -> str:
    """Return a note if the mean probability of a class differs from its frequency, else an empty text.

    Samples are weighted so that classes have their frequencies p: a model that is calibrated under p then passes.

    Args:
        probabilities: (M, C) of labelled samples.
        labels: class indices (M,).
        source: (C,) frequencies p.
        names: of the classes.
    """
    m, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    weights = (source * m / np.maximum(counts, 1))[labels]
    residuals = -np.asarray(probabilities, np.float64)
    residuals[np.arange(m), labels] += 1
    residuals *= weights[:, None]
    mean = residuals.mean(axis=0)
    error = residuals.std(axis=0) / np.sqrt(m)
    limit = NormalDist().inv_cdf(1 - _LEVEL / (2 * classes))
    share = np.abs(mean) / source
    off = (np.abs(mean) > limit * error) & (share > _LARGE)
    if not off.any():
        return ""
    worst = int(np.argmax(np.where(off, share, 0)))
    return (
        f"the model gives class '{names[worst]}' a mean probability of {source[worst] - mean[worst]:.4f}, and its "
        f"frequency is {source[worst]:.4f}: {int(off.sum())} classes are off, and EM carries that over; calibrate with "
        "--map bias first, or say the frequencies of the calibration data with --source-prior"
    )
