"""The paper's main table: each map alone, after a sparse search and in a complete one; and every other map.

Both sets of samples together are split anew for each repeat, stratified by class. All rows share the splits, so that
differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tna_onnx.errors import DataError
from tna_onnx.results.study import Study
from tna_onnx.studies.data import StudyData
from tna_onnx.studies.measured import measured
from tna_onnx.studies.methods import PAPER_MAPS, Found, chosen, complete, fit, maps_for, plain, scored, sparse
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.table_rows import Row, Runs, cells_of, columns, label, sentence

__all__ = ["study"]


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Make the table."""
    runs = Runs()
    names = maps_for(len(data.weight))
    rows = list(_rows(names))
    for repeat in range(settings.repeats):
        split = data.split(repeat, settings.seed)
        seed = settings.seed + repeat
        tilted = sparse(split, settings, seed)
        pairs = complete(split, PAPER_MAPS, settings, seed)
        for k, row in enumerate(rows):
            _run(row, split, settings, seed, tilted, pairs, runs)
            progress(repeat * len(rows) + k + 1, settings.repeats * len(rows))
    whole = [row for row in rows if row not in runs.failed]
    sizes = (len(data.calibration), len(data.held_out))
    cells = tuple(tuple(cells_of(row, runs, sizes)) for row in whole)
    notes = [f"{label(row)} is left out: {reason}" for row, reason in runs.failed.items()]
    notes += [
        "Both sets of samples are split anew for each repeat. Intervals are 95 %, corrected for the overlap of splits.",
        "Changes and verdicts of rows with TNA are against the same map alone, those of maps against None.",
    ]
    return Study(
        "table", "Main results", "main table", sentence(whole, runs, sizes), columns(), cells, notes=tuple(notes)
    )


def _rows(names: tuple[str, ...]) -> Iterator[Row]:
    yield ("none", "none")
    yield ("sparse", "none")
    for name in names:
        yield ("none", name)
        if name in PAPER_MAPS:
            yield ("sparse", name)
            yield ("complete", name)
    yield ("auto", "auto")


def _run(
    row: Row,
    data: StudyData,
    settings: StudySettings,
    seed: int,
    tilted: Found,
    pairs: Mapping[str, Found],
    runs: Runs,
) -> None:
    """Fit one row on one split, and score it."""
    if row in runs.failed:
        return
    search, name = row
    try:
        if search == "auto":
            # what `calibrate` does, whatever the protocol of the other rows
            data = replace(data, tilt_bias=True)
            found = chosen(data, settings.by_default, seed)
        elif search == "complete":
            if name not in pairs:
                raise DataError("it cannot be fitted on the original weight")
            found = pairs[name]
        elif search == "sparse":
            fitted = fit(name, data.logits(data.calibration, tilted.weight), settings)
            found = Found(tilted.weight, fitted, tilted.angle, tilted.members)
        else:
            found = plain(data, name, settings, seed)
    except DataError as error:
        runs.failed[row] = str(error)
        return
    runs.values.setdefault(row, []).append(measured(scored(data, found), settings.bins))
    runs.found.setdefault(row, []).append(found)
