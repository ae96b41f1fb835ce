"""Samples that calibration has seen and that must not judge its result; told by the digests of single samples."""

from __future__ import annotations

from tna_onnx.data.digest import sample_digests
from tna_onnx.data.leaks import overlap_of, read_sketch, repeats_of, sketch_overlap
from tna_onnx.data.limits import Limits
from tna_onnx.errors import DataError
from tna_onnx.extraction.given import Samples
from tna_onnx.graph.load import Model
from tna_onnx.graph.rewrite import provenance

__all__ = ["check_leaks"]

# A sketch tells a small share only roughly: by this much, or by fewer samples, an estimate may be above by chance.
_SKETCH_MARGIN = 0.05
_MIN_TOLD = 3


def check_leaks(model: Model, samples: Samples, held_out: Samples | None, limits: Limits) -> tuple[str, ...]:
    """Refuse held-out samples that were calibrated on; return what else there is to say about equal samples.

    Args:
        model: the model, which may have been recalibrated before.
        samples: calibration samples.
        held_out: samples for the report, if given.
        limits: how much may be shared.

    Raises:
        DataError: more is shared than the limit allows, or a sample cannot be read.
    """
    sets = [samples]
    if held_out is not None:
        sets.append(held_out)
    notes = [note for each in sets for note in _refuse_earlier(model, each, limits)]
    if held_out is not None:
        notes += _refuse_shared(samples, held_out, limits)
    for each in sets:
        notes += _repeats(each, folds=held_out is None)
    return tuple(notes)


def _refuse_shared(samples: Samples, held_out: Samples, limits: Limits) -> list[str]:
    """Refuse held-out data that are calibration data; note a small share that is.

    Raises:
        DataError: a larger share.
    """
    overlap = overlap_of(sample_digests(held_out.source), sample_digests(samples.source))
    what = f"{overlap.shared:,} of {overlap.n:,} samples ({overlap.share:.2%})"
    if 100 * overlap.share > limits.overlap:
        raise DataError(
            f"{held_out.source.describe()}: {what} are calibration samples too, so they cannot judge the result; "
            "remove them, or leave out --eval to have the result cross-fitted. Where equal samples are to be expected, "
            "as in tables of few distinct rows, --data-limit overlap=PERCENT allows them"
        )
    if overlap.shared:
        return [f"{held_out.source.describe()}: {what} are calibration samples too"]
    return []


def _refuse_earlier(model: Model, each: Samples, limits: Limits) -> list[str]:
    """Refuse data that the model was recalibrated on before: it looks better on them than it is.

    Raises:
        DataError: such data.
    """
    entries = provenance(model)
    own = entries.get("calibration_sha256")
    if own is None:
        return []
    overlap = sketch_overlap(sample_digests(each.source), read_sketch(entries.get("calibration_sketch", "")))
    certain = 100 * overlap.share > limits.overlap + 100 * _SKETCH_MARGIN and overlap.shared >= _MIN_TOLD
    # Files of earlier versions have no sketch.
    if (certain or each.source.digest() == own) and limits.overlap < 100:
        raise DataError(
            f"{each.source.describe()}: {model.name} was recalibrated on these data, and looks better on them than "
            "it is; give others, or start from the original model"
        )
    if overlap.shared:
        share = f"about {overlap.share:.0%}"
        return [f"{each.source.describe()}: {model.name} was recalibrated on some of these samples, {share}"]
    return []


def _repeats(each: Samples, *, folds: bool) -> list[str]:
    """Say how many samples are copies of others, and how many of those have another label."""
    repeats = repeats_of(sample_digests(each.source), each.source.labels)
    notes = []
    where = each.source.describe()
    if repeats.copies:
        note = f"{where}: {repeats.copies:,} samples ({repeats.copies / repeats.n:.2%}) are copies of others"
        if folds:  # a copy may be in the part that is fitted, and its twin in the part that judges
            note += ", which flatters cross-fitted numbers; give --eval, or remove the copies"
        notes.append(note)
    if repeats.contradicting:
        notes.append(f"{where}: {repeats.contradicting:,} samples have an equal one with another label; correct them")
    return notes
