"""Two classes, people act on P(positive): `calibrate` against the best of Platt, beta and isotonic fitted by hand.

For each learner, training set (as drawn, as many positives as negatives, or weighted), share of positives and number of
samples: the default command with the output of labels and without, and `--predictions change`, on new samples. By hand:
the choice among the input and the three by the log loss of five folds. Prints a line for each cell, and how many meet
    nll, change   the log loss is not above that by hand by more than two standard errors
    ece           the ECE of P(positive) is not above that by hand by more than a point
    label         labels are equal to the last bit
    honest        no "improved" or "needs no recalibration" with the mean off by more than three standard errors of N
    improved      files without labels whose P(positive) is truly better, by log loss and ECE, are called improved

    python benchmarks/two_classes.py --learner lightgbm --samples 300
"""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import xgboost
from common import arguments
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType as FloatColumns
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier, GradientBoostingClassifier, RandomForestClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

import tna_onnx

FEATURES, TRAINED, NEW = 12, 2000, 20_000
LEARNERS: dict[str, Callable[[int], Any]] = {
    "lightgbm": lambda seed: lightgbm.LGBMClassifier(n_estimators=60, verbose=-1, n_jobs=1, random_state=seed),
    "xgboost": lambda seed: xgboost.XGBClassifier(n_estimators=60, n_jobs=1, random_state=seed),
    "forest": lambda seed: RandomForestClassifier(60, random_state=seed),
    "extra": lambda seed: ExtraTreesClassifier(60, random_state=seed),
    "boosting": lambda seed: GradientBoostingClassifier(random_state=seed),
    "knn": lambda _: KNeighborsClassifier(15),
    "svc": lambda seed: SVC(probability=True, random_state=seed),
    "logistic": lambda _: LogisticRegression(max_iter=1000),
    "bayes": lambda _: GaussianNB(),
    "mlp": lambda seed: MLPClassifier([32], max_iter=200, random_state=seed),
}
WEIGHTED = {"knn", "mlp"}  # take no weights: rare samples are repeated instead
CRITERIA = ("nll", "ece", "label", "honest", "improved", "change")
# Name -> whether the file has its output of labels, and --predictions.
RUNS: dict[str, tuple[str, Any]] = {"auto": ("label", "auto"), "argmax": ("", "auto"), "change": ("", "change")}


def trained(learner: str, how: str, x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """Fit a learner on samples as they are, on as many positives as negatives, or with classes of equal weight."""
    rng = np.random.default_rng(seed)
    positive, negative = (np.flatnonzero(y == label) for label in (1, 0))
    rows, fit = np.arange(len(y)), {}
    if how == "balanced":
        rows = np.concatenate([positive, rng.choice(negative, min(len(positive), len(negative)), replace=False)])
    if how == "weighted" and learner in WEIGHTED:
        rows = np.concatenate([rng.choice(positive, len(y) // 2), rng.choice(negative, len(y) // 2)])
    elif how == "weighted":
        fit = {"sample_weight": np.where(y == 1, 0.5 / max(y.mean(), 1e-9), 0.5 / (1 - y.mean()))}
    return LEARNERS[learner](seed).fit(x[rows], y[rows], **fit)


def save(model: Any, learner: str, path: Path) -> None:
    """Export a model with its label and a tensor of probabilities."""
    types = [("x", FloatTensorType([None, FEATURES]))]
    if learner == "lightgbm":
        made = onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False)
    elif learner == "xgboost":
        made = onnxmltools.convert_xgboost(model, initial_types=types)
    else:
        made = to_onnx(
            model,
            initial_types=[("x", FloatColumns([None, FEATURES]))],
            options={id(model): {"zipmap": False}},
            target_opset=17,
        )
    onnx.save(made, path)


def without_label(path: Path, new: Path) -> Path:
    """Write the same model with its probabilities alone."""
    model = onnx.load(path)
    model.graph.output.pop(0)
    onnx.save(model, new)
    return new


def outputs(path: Path, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N,), or nothing, and P(positive) (N,)."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    *label, p = session.run(None, {session.get_inputs()[0].name: x})
    return np.array(label), np.asarray(p, np.float64)[:, 1]


Array = np.ndarray[Any, Any]
Map = Callable[[Array], Array]


def logistic(columns: Map, p: Array, y: Array) -> Map:
    """Fit a logistic regression on columns that are made of p."""
    fit = LogisticRegression(C=1e9, max_iter=1000).fit(columns(p), y)
    return lambda q: np.asarray(fit.predict_proba(columns(q))[:, 1])


def log_odds(p: Array) -> Array:
    """Return the column of Platt's map."""
    return np.stack([np.log(p / (1 - p))], axis=1)


def two_logs(p: Array) -> Array:
    """Return the columns of a beta map (Kull et al., 2017), without its bounds."""
    return np.stack([np.log(p), -np.log1p(-p)], axis=1)


def isotonic(p: Array, y: Array) -> Map:
    """Fit an isotonic map."""
    fit = IsotonicRegression(out_of_bounds="clip").fit(p, y)
    return lambda q: np.asarray(fit.predict(q))


FITS: dict[str, Callable[[Array, Array], Map]] = {
    "none": lambda *_: lambda q: q,
    "platt": functools.partial(logistic, log_odds),
    "beta": functools.partial(logistic, two_logs),
    "isotonic": isotonic,
}


def losses(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log loss of each sample, nats."""
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return -np.log(np.where(y == 1, p, 1 - p))


def ece(p: np.ndarray, y: np.ndarray) -> float:
    """ECE of P(positive), 15 bins."""
    place = np.minimum((p * 15).astype(int), 14)
    return float(np.abs(np.bincount(place, y - p, 15)).sum() / len(y))


def by_hand(p: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> np.ndarray:
    """Return P(positive) of new samples by the map that five folds choose."""
    p, new = (np.clip(q, 1e-4, 1 - 1e-4) for q in (p, new))
    scores = dict.fromkeys(FITS, 0.0)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(p, y):
        for name, fit in FITS.items():
            scores[name] += float(losses(fit(p[train], y[train])(p[test]), y[test]).sum())
    return FITS[min(scores, key=scores.__getitem__)](p, y)(new)


def cell(learner: str, how: str, share: float, samples: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run one cell, and return what came out by criterion: True, False, or None where it says nothing."""
    total = TRAINED + samples + NEW
    x, y = make_classification(
        total, FEATURES, n_informative=8, weights=[1 - share], flip_y=0.01, class_sep=0.8, random_state=seed
    )
    x = x.astype(np.float32)
    train, calib, new = slice(TRAINED), slice(TRAINED, TRAINED + samples), slice(TRAINED + samples, None)
    path, written = folder / "m.onnx", folder / "o.onnx"
    save(trained(learner, how, x[train], y[train], seed), learner, path)
    found: dict[str, Any] = dict.fromkeys(CRITERIA)
    found["cell"] = f"{learner} {how} {100 * share:g} % N {samples}"
    label, before = outputs(path, x[new])
    hand = by_hand(outputs(path, x[calib])[1], y[calib], before, seed)
    for name, p in (("by hand", hand), ("input", before)):
        found |= {f"NLL {name}": round(float(losses(p, y[new]).mean()), 4), f"ECE {name}": round(ece(p, y[new]), 4)}
    for run, (model, predictions) in RUNS.items():
        given = path if model == "label" else without_label(path, folder / "p.onnx")
        written.unlink(missing_ok=True)
        try:
            report = tna_onnx.calibrate(
                given, {"x": x[calib], "labels": y[calib]}, output=written, predictions=predictions, device="cpu"
            )
        except tna_onnx.TnaError as error:
            found[f"error {run}"] = f"{type(error).__name__}: {error}"[:300]
            found["nll" if run == "auto" else run] = False
            continue
        kept, after = outputs(written, x[new])
        worse = losses(after, y[new]) - losses(hand, y[new])
        good = bool(worse.mean() <= 2 * worse.std() / np.sqrt(len(worse)))
        found |= {f"NLL {run}": round(float(losses(after, y[new]).mean()), 4), f"method {run}": report.method}
        found |= {f"ECE {run}": round(ece(after, y[new]), 4), f"word {run}": report.word}
        away = abs(after.mean() - y[new].mean()) / np.sqrt(y[new].mean() * (1 - y[new].mean()) / samples)
        honest = not (away > 3 and (report.word == "improved" or "needs no" in report.summary))
        found["honest"] = honest and found["honest"] is not False
        if run == "auto":
            found |= {"nll": good, "ece": ece(after, y[new]) <= ece(hand, y[new]) + 0.01}
            found["label"] = bool(np.array_equal(label, kept))
        elif run == "change":
            found["change"] = good
        else:
            gain = losses(before, y[new]) - losses(after, y[new])
            better = gain.mean() > max(2 * gain.std() / np.sqrt(len(gain)), 0.005)
            if better and ece(after, y[new]) < ece(before, y[new]):
                found["improved"] = report.word == "improved"
    return found


def main() -> None:
    """Run the grid, or a part of it."""
    parser = arguments(__doc__)
    parser.add_argument("--learner", choices=LEARNERS, action="append", help="default: all")
    parser.add_argument("--samples", type=int, action="append", help="default: 300 and 2000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file of JSON lines, a cell each")
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(3)
    rows = []
    grid = [
        *itertools.product(
            a.samples or (300, 2000), (0.02, 0.15, 0.5), ("natural", "balanced", "weighted"), a.learner or LEARNERS
        )
    ]
    # in a random order: what is done so far is a sample of the whole
    for k in np.random.default_rng(0).permutation(len(grid)):
        samples, share, how, learner = grid[k]
        with tempfile.TemporaryDirectory() as folder:
            rows.append(cell(learner, how, share, samples, a.seed, Path(folder)))
        line = json.dumps(rows[-1])
        print(line, flush=True)
        if a.output:
            with a.output.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    for criterion in CRITERIA:
        known = [row[criterion] for row in rows if row[criterion] is not None]
        print(f"{criterion}: {sum(known)} of {len(known)}")


if __name__ == "__main__":
    main()
