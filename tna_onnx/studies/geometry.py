"""Where class vectors and features point: mRC against the number of rotations, and angles before and after tilting.

    E<w, R w> / |w|^2 = a^k,    a = 1 - 2/n (1 - E cos t),    t = theta_s tau,  tau ~ Beta(alpha, beta)

after k rotations in n dimensions; E cos t is the real part of 1F1(alpha; alpha + beta; i theta_s). "Other class" is a
random one that is not the label. The theorem gives the mode of an angle after tilting (docs/explanation/theory.md).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.results.study import Cell, Chart, Column, Found, Line
from tna_onnx.studies.recalibrations import StudyData, table_rows, walk
from tna_onnx.studies.settings import StudySettings

# theta_s, alpha, beta besides those that are asked for: the paper's three other theta_s, and other shapes.
_SHAPES = ((0.5, 5.0, 1.0), (1.0, 5.0, 1.0), (1.5, 5.0, 1.0), (0.9, 1.0, 1.0), (0.9, 1.0, 5.0))

# Points of a curve, and walks behind each for every repeat.
_POINTS = 24
_DRAWS = 4

# Bytes of class vectors that are walked side by side.
_TOGETHER = 2**26


def rotations(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Found:
    """Walk from the original weight, and measure mRC along the way."""
    rows: list[tuple[float, ...]] = []
    n = data.weight.shape[1]
    # what is asked for goes first, by default the paper's own setting
    shapes = tuple(dict.fromkeys([(settings.theta_s, settings.alpha, settings.beta), *_SHAPES]))
    end = _last_rotation(n, shapes)
    draws = _DRAWS * settings.repeats
    means: list[Line] = []
    deviations: list[Line] = []
    for k, (theta_s, alpha, beta) in enumerate(shapes):
        tilt = TiltParameters(alpha, beta, theta_s)
        walked = list(_walked(data.weight, tilt, draws, end, (settings.seed, k)))
        x, mrc, spread, over_classes = zip(*walked, strict=True)
        expected = tuple(expected_angle(n, rotations, tilt) for rotations in x)
        rows += [(theta_s, alpha, beta, *point, angle) for point, angle in zip(walked, expected, strict=True)]
        low, high = (tuple(a + sign * b for a, b in zip(mrc, spread, strict=True)) for sign in (-1, 1))
        name = f"theta_s {theta_s:g}, Beta({alpha:g}, {beta:g})"
        means.append(Line(name, x, mrc, low, high, k))
        means.append(Line(f"{name}, expected", x, expected, rank=k, dashed=True, marked=False))
        deviations.append(Line(name, x, over_classes, rank=k))
        progress(k + 1, len(shapes))
    gap = max(abs(row[4] - row[7]) for row in rows)
    return Found(
        f"mRC rises with the rotations towards 90 degrees (up to {max(row[4] for row in rows):.1f}). It is within "
        f"{gap:.1f} degrees of the expectation from theta_s and Beta in {n:,} dimensions.",
        (
            Column("theta_s", "theta_s, radians", 1, 1),
            Column("alpha", "alpha", 1, 0),
            Column("beta", "beta", 1, 0),
            Column("rotations", "Rotations n_r"),
            Column("mrc", "mRC, degrees", 1, 2, beside=("mrc_sd",)),
            Column("mrc_sd", "SD of mRC over draws, degrees", 1, 2, hidden=True),
            Column("over_classes", "SD over classes, degrees", 1, 2),
            Column("expected", "Expected, degrees", 1, 2),
        ),
        rows,
        (
            Chart("mRC against rotations", "rotations n_r", "mRC, degrees", tuple(means)),
            Chart("Deviation over classes", "rotations n_r", "SD over classes, degrees", tuple(deviations)),
        ),
        (f"Each point is the mean of {draws} tilted weights; dashed lines are the expectation.",),
    )


def expected_angle(n: int, rotations: int, tilt: TiltParameters) -> float:
    """Return arccos a^k in degrees, for n dimensions and k rotations.

    >>> expected_angle(10**9, 1, TiltParameters())  # one rotation of two of very many coordinates
    0.0...
    """
    cosine = float(special.hyp1f1(tilt.alpha, tilt.alpha + tilt.beta, 1j * tilt.theta_s).real)
    cosine = (1 - 2 / n * (1 - cosine)) ** rotations
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def _last_rotation(n: int, shapes: Sequence[tuple[float, float, float]]) -> int:
    """Return the number of rotations after which the smallest theta_s of Beta(5, 1) is past 85 degrees."""
    tilt = TiltParameters(theta_s=min(theta_s for theta_s, *shape in shapes if shape == [5.0, 1.0]))
    slowest = 1 - special.hyp1f1(tilt.alpha, tilt.alpha + tilt.beta, 1j * tilt.theta_s).real
    return max(_POINTS, math.ceil(math.log(math.cos(math.radians(85))) / math.log1p(-2 / n * slowest)))


def _walked(
    weight: NDArray[Any], tilt: TiltParameters, draws: int, end: int, seed: tuple[int, int]
) -> Iterator[tuple[int, float, float, float]]:
    """Yield n_r, mean mRC over draws, its deviation, and the mean deviation over classes, in degrees."""
    by_step: dict[int, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    together = max(1, _TOGETHER // weight.nbytes)
    for first in range(0, draws, together):
        rng = np.random.default_rng([*seed, first])
        for stop in walk(weight, min(together, draws - first), tilt, rng, end, max(1, end // _POINTS)):
            by_step.setdefault(stop.rotations, []).append((stop.mrc, np.degrees(np.nanstd(stop.angles, axis=1))))
    for rotations, parts in by_step.items():
        mrc, deviations = (np.concatenate(values) for values in zip(*parts, strict=True))
        yield rotations, float(mrc.mean()), float(mrc.std(ddof=1)), float(deviations.mean())


def feature_angles(weight: NDArray[Any], features: NDArray[Any], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (N,) angles in degrees between features (N, n) and the vectors of `classes` (N,); NaN of zero vectors."""
    z = np.asarray(features, np.float64)
    w = np.asarray(weight, np.float64)[classes]
    lengths = np.linalg.norm(z, axis=1) * np.linalg.norm(w, axis=1)
    lengths[lengths == 0] = np.nan
    angles: NDArray[np.float64] = np.degrees(np.arccos(np.clip(np.einsum("in,in->i", z, w) / lengths, -1, 1)))
    return angles


# The paper's number of samples, and its angles.
_SAMPLES = 4000
_ANGLES = (30.0, 45.0)
_MEMBERS = 10

_WIDTH = 3.0
_EDGES = np.arange(0, 180 + _WIDTH, _WIDTH)

_COLUMNS = (
    Column("weight", "Weight"),
    Column("mrc", "mRC, degrees", 1, 2),
    Column("kind", "Class vector"),
    Column("samples", "Samples"),
    Column("mean", "Mean angle, degrees", 1, 2, beside=("sd",)),
    Column("sd", "SD, degrees", 1, 2, hidden=True),
    Column("theorem", "Mean of arccos(cos psi cos theta), degrees", 1, 2),
    *(Column(f"bin_{low:g}", f"{low:g} to {low + _WIDTH:g} degrees, %", 100, 2, hidden=True) for low in _EDGES[:-1]),
)

Angles = dict[tuple[str, str], NDArray[np.float64]]
"""(weight, kind) -> angles in degrees."""

# Kinds of class vectors: that of the label for all samples and for those predicted right or wrong, and another one.
_OWN = "own class"
_OTHER = "other class"
_RIGHT = "own class, predicted right"
_WRONG = "own class, predicted wrong"


def angles(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Found:
    """Measure the angles of held-out samples."""
    rng = np.random.default_rng(settings.seed)
    table = data.held_out
    if len(table) > _SAMPLES:
        table = table_rows(table, np.sort(rng.choice(len(table), _SAMPLES, replace=False)))
    classes = len(data.weight)
    other_classes = (table.labels + rng.integers(1, classes, len(table))) % classes
    by_weight: Angles = {}
    rows: list[tuple[Cell, ...]] = []
    for k, (name, average) in enumerate(_averages(data.weight, settings.seed).items()):
        to_label = feature_angles(average.weight, table.features, table.labels)
        right = data.logits(table, average.weight).predictions() == table.labels
        kinds = {
            _OWN: (to_label, table.labels),
            _RIGHT: (to_label[right], None),
            _WRONG: (to_label[~right], None),
            _OTHER: (feature_angles(average.weight, table.features, other_classes), other_classes),
        }
        for kind, (values, targets) in kinds.items():
            degrees = values[~np.isnan(values)]
            by_weight[name, kind] = degrees
            expected = None
            # the theorem is about one rotation, and the same samples before and after: right and wrong ones change
            if targets is not None and name in _names()[1:]:
                expected = _expected(data.weight, average.weight, table, targets)
            if len(degrees):
                numbers = (float(degrees.mean()), float(degrees.std()), expected, *_shares(degrees).tolist())
                rows.append((name, average.reached, kind, len(degrees), *numbers))
        progress(k + 1, 1 + 2 * len(_ANGLES))
    means = {(row[0], row[2]): row[4] for row in rows}
    parts = [
        f"{name} {means[name, _OWN]:.1f} and {means[name, _OTHER]:.1f}" for name in _names() if (name, _OWN) in means
    ]
    sentence = f"Mean angle to the own and to another class's vector, in degrees: {'; '.join(parts)}."
    averaged = f", {_MEMBERS} members"
    charts = (
        _chart("One tilted weight", by_weight, _names(), {_OWN: _OWN, _OTHER: _OTHER}),
        _chart(f"Average of {_MEMBERS}", by_weight, _names(averaged), {_OWN: _OWN, _OTHER: _OTHER}),
        _chart("Own class, by the prediction", by_weight, _names(), {_RIGHT: "right", _WRONG: "wrong"}),
    )
    return Found(sentence, _COLUMNS, rows, charts)


def _names(ending: str = "") -> list[str]:
    """Return the names of the original weight and of tilted ones."""
    return ["original", *(f"{degrees:g} degrees{ending}" for degrees in _ANGLES)]


def _averages(weight: NDArray[Any], seed: int) -> dict[str, Average]:
    """Return the original weight, tilted weights and averages, by name."""
    named = {"original": Average(0.0, weight, 0.0, 0.0)}
    for size, ending in ((1, ""), (_MEMBERS, f", {_MEMBERS} members")):
        averaged = averages(weight, _ANGLES, size, Draws(seed))
        named |= {f"{average.angle:g} degrees{ending}": average for average in averaged}
    return named


def _expected(
    weight: NDArray[Any], tilted: NDArray[Any], table: FeatureTable, classes: NDArray[np.int64]
) -> float | None:
    """Return the mean of the theorem's mode, given the angles by which the class vectors actually turned."""
    psi = np.radians(feature_angles(weight, table.features, classes))
    theta = np.radians(feature_angles(weight, tilted, np.arange(len(weight))))[classes]
    modes = np.degrees(np.arccos(np.cos(psi) * np.cos(theta)))
    defined = modes[~np.isnan(modes)]
    return float(defined.mean()) if len(defined) else None


def _shares(degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.histogram(degrees, _EDGES)[0] / max(1, len(degrees))
    return shares


def _chart(title: str, by_weight: Angles, names: Sequence[str], kinds: Mapping[str, str]) -> Chart:
    """Return the histograms of two kinds with their words, as far as there are such angles; the second is dashed."""
    lines = []
    for rank, name in enumerate(names, start=1):
        for k, (kind, word) in enumerate(kinds.items()):
            shares = 100 * _shares(by_weight.get((name, kind), np.zeros(0)))
            filled = np.flatnonzero(shares)
            if not len(filled):
                continue
            # non-empty bins, and one more on each side
            bins = slice(max(0, filled[0] - 1), filled[-1] + 2)
            x = tuple((_EDGES[:-1] + _WIDTH / 2)[bins].tolist())
            y = tuple(shares[bins].tolist())
            lines.append(Line(f"{name}, {word}", x, y, rank=rank, dashed=k == 1, marked=False))
    return Chart(title, "angle, degrees", f"share per {_WIDTH:g} degrees, %", tuple(lines))
