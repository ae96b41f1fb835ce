"""Samples that calibration has seen and that must not judge its result; told by the digests of single samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.digest import sample_digests
from tna_onnx.data.leaks import overlap_of, read_sketch, repeats_of, sketch_overlap
from tna_onnx.data.limits import Limits
from tna_onnx.data.positions import sample_labels
from tna_onnx.data.source import Source
from tna_onnx.errors import DataError
from tna_onnx.graph.load import Model
from tna_onnx.graph.own_names import calibrated_heads, head_provenance

__all__ = ["MIN_TOLD", "SKETCH_MARGIN", "Told", "check_leaks"]

SKETCH_MARGIN = 0.05
"""A sketch tells a small share only roughly: an estimate may be above it by this much by chance."""

MIN_TOLD = 3
"""Or by fewer samples than these."""

# One equal sample is no leak, however few there are.
_MIN_SHARED = 2


@dataclass(frozen=True, eq=False)
class Told:
    """A data set as far as leaks are concerned.

    Attributes:
        source: the samples.
        form: what their digests are of.
    """

    source: Source
    form: str

    @functools.cached_property
    def digests(self) -> NDArray[np.uint64]:
        """Digests of the samples, (N,); read once, as a source may be slow."""
        return sample_digests(self.source)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source.describe()


def check_leaks(
    model: Model,
    calib: Told,
    held_out: Told | None,
    limits: Limits,
    *,
    cross_fits: bool = True,
    earlier: bool = True,
) -> tuple[str, ...]:
    """Refuse held-out samples that were calibrated on; return what else there is to say about equal samples.

    Args:
        model: the model, which may have been recalibrated before.
        calib: calibration samples.
        held_out: samples for the report, if given.
        limits: how much may be shared.
        cross_fits: whether the command cross-fits without held-out samples; else it measures on those of `calib`.
        earlier: whether earlier runs on the model count; of several heads, they are turns of the same run.

    Raises:
        DataError: more is shared than the limit allows, or a sample cannot be read.
    """
    sets = [calib]
    if held_out is not None:
        sets.append(held_out)
    runs = [head_provenance(model, output) for output in calibrated_heads(model) or (None,)]
    notes = [note for each in sets for run in runs if earlier for note in _refuse_earlier(model, run, each, limits)]
    for judging in sets[1:]:
        notes += _refuse_shared(calib, judging, limits, cross_fits=cross_fits)
    for each in sets:
        notes += _repeats(each, folds=cross_fits and held_out is None)
    return tuple(notes)


def _refuse_shared(calib: Told, held_out: Told, limits: Limits, *, cross_fits: bool) -> list[str]:
    """Refuse held-out data that are calibration data; note a small share that is.

    Raises:
        DataError: a larger share.
    """
    if calib.form != held_out.form:
        return [
            f"{held_out.name}: whether these are calibration samples too is not known: the ones are told apart by "
            f"{held_out.form}, the others by {calib.form}"
        ]
    overlap = overlap_of(held_out.digests, calib.digests)
    what = f"{overlap.shared:,} of {overlap.n:,} samples ({overlap.share:.2%})"
    if 100 * overlap.share > limits.overlap and overlap.shared >= _MIN_SHARED:
        advice = "remove them, or leave out --eval to have the result cross-fitted"
        if not cross_fits:
            advice = "remove them"
        raise DataError(
            f"{held_out.name}: {what} are calibration samples too, so they cannot judge the result; {advice}. Where "
            "equal samples are to be expected, as in tables of few distinct rows, --data-limit overlap=PERCENT allows "
            "them"
        )
    if overlap.shared:
        return [f"{held_out.name}: {what} are calibration samples too"]
    return []


def _refuse_earlier(model: Model, entries: Mapping[str, str], each: Told, limits: Limits) -> list[str]:
    """Refuse data that the model was recalibrated on before: it looks better on them than it is.

    Raises:
        DataError: such data.
    """
    own = entries.get("calibration_sha256")
    if own is None:
        return []
    form = entries.get("calibration_form", each.form)
    if form != each.form:
        return [
            f"{each.name}: whether {model.name} was recalibrated on some of these samples is not known: it tells them "
            f"apart by {form}, and these by {each.form}"
        ]
    overlap = sketch_overlap(each.digests, read_sketch(entries.get("calibration_sketch", "")))
    certain = 100 * overlap.share > limits.overlap + 100 * SKETCH_MARGIN and overlap.shared >= MIN_TOLD
    # Files of earlier versions have no sketch.
    if (certain or each.source.digest() == own) and limits.overlap < 100:
        raise DataError(
            f"{each.name}: {model.name} was recalibrated on these data, and looks better on them than "
            "it is; give others, or start from the original model"
        )
    if overlap.shared:
        share = f"about {overlap.share:.0%}"
        return [f"{each.name}: {model.name} was recalibrated on some of these samples, {share}"]
    return []


def _repeats(each: Told, *, folds: bool) -> list[str]:
    """Say how many samples are copies of others, and how many of those have another label."""
    repeats = repeats_of(each.digests, sample_labels(each.source))
    notes = []
    if repeats.copies:
        note = f"{each.name}: {repeats.copies:,} samples ({repeats.copies / repeats.n:.2%}) are copies of others"
        if folds:  # a copy may be in the part that is fitted, and its twin in the part that judges
            note += ", which flatters cross-fitted numbers; give --eval, or remove the copies"
        notes.append(note)
    if repeats.contradicting:
        notes.append(
            f"{each.name}: {repeats.contradicting:,} samples have an equal one with another label; correct them"
        )
    return notes
