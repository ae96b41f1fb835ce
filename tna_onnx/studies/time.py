"""The cost of searches and fits: seconds, and the equivalent number of products of all features with a weight.

Seconds differ from run to run; the number of candidates does not. Each time is the shortest of a few runs.
Source: the paper, section "Experimental Details", on computation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tna_onnx.errors import DataError
from tna_onnx.results.study import Cell, Column, Study
from tna_onnx.studies.methods import PAPER_MAPS, Recalibration, complete, plain, sparse
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings

__all__ = ["study"]

# Products are short: enough of them to measure.
_PRODUCTS = 5
# Runs of which the shortest counts; a search is long enough to be measured once.
_RUNS = 2


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Time every search and fit."""
    product = min(_seconds(lambda: _product(data))[0] for _ in range(_PRODUCTS))
    rows: list[tuple[Cell, ...]] = [("one product with all features, and scores", product, 1.0, 1)]
    steps = list(_steps(data, settings))
    for k, (name, make, runs) in enumerate(steps):
        try:
            seconds, result = min((_seconds(make) for _ in range(runs)), key=lambda timed: timed[0])
            rows.append((name, seconds, seconds / product, result.candidates))
        except DataError:
            rows.append((name, None, None, None))
        progress(k + 1, len(steps))
    columns = (
        Column("step", "Step"),
        Column("seconds", "Seconds", 1, 3),
        Column("products", "In products", 1, 1),
        Column("candidates", "Weights scored"),
    )
    return Study("time", "Cost", "time of the searches", _sentence(rows), columns, tuple(rows))


def _steps(data: StudyData, settings: StudySettings) -> Iterator[tuple[str, Callable[[], Recalibration], int]]:
    seed = settings.seed
    yield "sparse search", lambda: sparse(data, settings, seed), _RUNS
    for name in PAPER_MAPS:
        yield f"fit of {name}", lambda name=name: plain(data, name, settings, seed), _RUNS  # type: ignore[misc]
    for name in PAPER_MAPS:
        yield f"complete search with {name}", lambda name=name: _complete(data, name, settings), 1  # type: ignore[misc]


def _complete(data: StudyData, name: str, settings: StudySettings) -> Recalibration:
    """Search pairs with one map.

    Raises:
        DataError: it cannot be fitted.
    """
    result = complete(data, [name], settings, settings.seed)
    if name not in result:
        raise DataError(f"{name}: it cannot be fitted on the original weight")
    return result[name]


def _product(data: StudyData) -> Recalibration:
    data.logits(data.calibration).scores()
    return Recalibration(data.weight)


def _seconds(make: Callable[[], Recalibration]) -> tuple[float, Recalibration]:
    start = time.perf_counter()
    result = make()
    return time.perf_counter() - start, result


def _sentence(rows: list[tuple[Cell, ...]]) -> str:
    durations = {str(row[0]): float(row[1] or 0) for row in rows if row[1]}
    longest = max([(seconds, name) for name, seconds in durations.items() if name.startswith("complete")], default=None)
    text = f"The sparse search takes {durations['sparse search']:.2f} seconds"
    if longest is None:
        return f"{text}; no map could be fitted."
    return f"{text}; of the complete ones the longest takes {longest[0]:.1f} ({longest[1].rpartition(' ')[2]})."
