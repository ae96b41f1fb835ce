"""When a choice may change predicted classes: the frontier of rules.

Problems are drawn anew in each run: tables made here or shipped with scikit-learn, classifiers of scikit-learn, some of
them trained with other class frequencies than those of the data. Every method is cross-fitted on calibration samples as
`calibrate` does it, then fitted on all of them and scored on new samples. A rule sees the cross-fitted scores alone;
what it would have chosen is judged on the new samples.

    python benchmarks/predictions_rule.py --work out/rule --splits 6 --seed 0
    python benchmarks/predictions_rule.py --work out/rule --splits 6 --seed 0 --only-rules
"""

from __future__ import annotations

import argparse
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits
from tna_onnx.errors import TnaError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.metrics import sample_losses
from tna_onnx.numerics.recall_bounds import Recalls
from tna_onnx.numerics.residuals import mean_and_error
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import MapFits
from tna_onnx.pipeline.methods import Method, Rule
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy

Floats = NDArray[np.float32]
Arrays = tuple[NDArray[Any], NDArray[np.int64]]

# New samples that a choice is judged on, where there are as many.
TEST = 8_000


# ---- problems


@dataclass(frozen=True)
class Family:
    """A kind of problem.

    Attributes:
        data: (samples, seed) -> features and labels; a shipped table gives all of its samples.
        model: a name in `MODELS`.
        train: samples to train on.
        calibration: samples to calibrate on.
        flip: share of labels of calibration and new samples that are wrong, drawn from all classes.
        balanced: whether the classifier is trained on as many samples of every class.
        noise: deviation of noise on calibration and new features, in deviations of the feature.
    """

    data: Callable[[int, int], Arrays]
    model: str
    train: int
    calibration: int
    flip: float = 0.0
    balanced: bool = False
    noise: float = 0.0


def _clusters(classes: int, weights: list[float] | None = None, **options: Any) -> Callable[[int, int], Arrays]:
    given: dict[str, Any] = {"n_features": 20, "n_informative": 12, "n_redundant": 4, "class_sep": 1.0, "flip_y": 0.02}
    given |= options

    def make(samples: int, seed: int) -> Arrays:
        x, y = datasets.make_classification(samples, n_classes=classes, weights=weights, random_state=seed, **given)
        return x, y.astype(np.int64)

    return make


def _shipped(load: Callable[..., Any]) -> Callable[[int, int], Arrays]:
    def make(_samples: int, seed: int) -> Arrays:
        x, y = load(return_X_y=True)
        rows = np.random.default_rng(seed).permutation(len(x))
        return x[rows], y[rows].astype(np.int64)

    return make


def _forest_cover(samples: int, seed: int) -> Arrays:
    """Seven classes with the frequencies of a forest's cover types; numbers, and a soil type as 0 and 1."""
    rng = np.random.default_rng(seed)
    shares = np.array([0.365, 0.488, 0.061, 0.005, 0.016, 0.030, 0.035])
    y = rng.choice(7, samples, p=shares)
    centres = rng.normal(0, 1.1, (7, 8))
    spread = rng.uniform(0.7, 1.6, (7, 8))
    numbers = centres[y] + spread[y] * rng.standard_normal((samples, 8))
    soils = rng.dirichlet(np.full(10, 0.4), 7)
    soil = (rng.random((samples, 1)) > np.cumsum(soils, axis=1)[y]).sum(1).clip(0, 9)
    return np.hstack([numbers, np.eye(10)[soil]]), y.astype(np.int64)


def _blobs(samples: int, seed: int) -> Arrays:
    x, y = datasets.make_blobs(samples, n_features=6, centers=8, cluster_std=4.5, random_state=seed)
    return x, y.astype(np.int64)


def _moons(samples: int, seed: int) -> Arrays:
    x, y = datasets.make_moons(samples, noise=0.4, random_state=seed)
    return x, y.astype(np.int64)


_TAIL = [0.7**k for k in range(10)]
_LONG_TAIL = [share / sum(_TAIL) for share in _TAIL]
_FIVE = [0.6, 0.2, 0.1, 0.06, 0.04]

# Those whose name starts with `rare` have a class below 5 %.
FAMILIES: dict[str, Family] = {
    "five, network": Family(_clusters(5), "network", 800, 500),
    "five, trees": Family(_clusters(5), "extra-trees", 800, 300),
    "five, boosting": Family(_clusters(5), "boosting", 800, 600),
    "five, bayes": Family(_clusters(5), "bayes", 800, 400),
    "five, noise, logistic": Family(_clusters(5), "logistic", 800, 500, noise=0.6),
    "ten, network": Family(_clusters(10), "network", 1500, 1000),
    "ten, wrong labels, network": Family(_clusters(10, class_sep=1.5), "network", 1500, 1500, flip=0.1),
    "ten, wrong labels, logistic": Family(_clusters(10, class_sep=1.5), "logistic", 1500, 1000, flip=0.2),
    "ten, neighbours": Family(_clusters(10), "neighbours", 1500, 800),
    "twenty, network": Family(_clusters(20, n_clusters_per_class=1), "network", 2000, 2000),
    "twenty, discriminant": Family(_clusters(20, n_clusters_per_class=1), "linear-discriminant", 2000, 1000),
    "blobs, quadratic": Family(_blobs, "quadratic-discriminant", 200, 400),
    "blobs, balanced, logistic": Family(_blobs, "logistic", 400, 500),
    "moons, network": Family(_moons, "network", 150, 300),
    "two, forest": Family(_clusters(2, class_sep=0.6), "forest", 500, 500),
    "two, tenth, network": Family(_clusters(2, [0.9]), "network", 800, 800),
    "two, tenth, balanced, logistic": Family(_clusters(2, [0.9]), "logistic", 800, 600, balanced=True),
    "two, tenth, balanced, forest": Family(_clusters(2, [0.9]), "forest", 800, 1000, balanced=True),
    "rare two, boosting": Family(_clusters(2, [0.97]), "boosting", 1500, 1000),
    "rare two, balanced, logistic": Family(_clusters(2, [0.96]), "logistic", 1500, 1500, balanced=True),
    "rare two, network": Family(_clusters(2, [0.97]), "network", 1500, 2000),
    "rare five, network": Family(_clusters(5, _FIVE), "network", 1000, 1000),
    "rare five, balanced, network": Family(_clusters(5, _FIVE), "network", 1500, 1500, balanced=True),
    "rare five, forest": Family(_clusters(5, _FIVE), "forest", 1000, 800),
    "rare ten, network": Family(_clusters(10, _LONG_TAIL), "network", 2000, 1500),
    "rare ten, balanced, boosting": Family(_clusters(10, _LONG_TAIL), "boosting", 2500, 2000, balanced=True),
    "rare cover, forest": Family(_forest_cover, "forest", 1500, 1500),
    "rare cover, network": Family(_forest_cover, "network", 1500, 3000),
    "fifty, network": Family(_clusters(50, n_clusters_per_class=1), "network", 2500, 2000),
    "digits, network": Family(_shipped(datasets.load_digits), "network", 300, 500),
    "digits, bayes": Family(_shipped(datasets.load_digits), "bayes", 300, 500),
    "cancer, network": Family(_shipped(datasets.load_breast_cancer), "network", 120, 200),
    "wine, bayes, noise": Family(_shipped(datasets.load_wine), "bayes", 40, 60, noise=0.8),
}

MODELS: dict[str, Callable[[int], Any]] = {
    "network": lambda seed: MLPClassifier((48,), alpha=0, max_iter=150, tol=0, random_state=seed),
    "logistic": lambda _seed: LogisticRegression(max_iter=300),
    "forest": lambda seed: RandomForestClassifier(60, min_samples_leaf=2, random_state=seed),
    "extra-trees": lambda seed: ExtraTreesClassifier(60, min_samples_leaf=2, random_state=seed),
    "boosting": lambda seed: HistGradientBoostingClassifier(
        max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=seed
    ),
    "bayes": lambda _seed: GaussianNB(),
    "neighbours": lambda _seed: KNeighborsClassifier(15),
    "linear-discriminant": lambda _seed: LinearDiscriminantAnalysis(),
    "quadratic-discriminant": lambda _seed: QuadraticDiscriminantAnalysis(reg_param=0.01),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A trained model's features and head, or its logits alone, on calibration samples and on new ones."""

    weight: Floats | None
    bias: Floats | None
    calibration: tuple[Floats, NDArray[np.int64]]
    test: tuple[Floats, NDArray[np.int64]]

    def logits(self, part: tuple[Floats, NDArray[np.int64]], weight: Any) -> Logits:
        """Return the logits of a part under a weight."""
        table = FeatureTable(*part)
        if weight is None or self.bias is None:
            return StoredLogits(table)
        scale = 1.0 if weight is self.weight else kept_part(self.weight, weight)
        return HeadLogits(table, weight, self.bias * np.float32(scale))


def make_problem(family: Family, seed: int) -> Problem:
    """Draw samples, train a model, and run it."""
    rng = np.random.default_rng(seed)
    needed = family.train * (4 if family.balanced else 1) + family.calibration + TEST
    x, y = family.data(needed, seed % 2**31)
    deviation = x[: family.train].std(0)
    x = (x - x[: family.train].mean(0)) / np.where(deviation > 0, deviation, 1)
    order = rng.permutation(len(x))
    x, y = x[order], y[order]
    taught = np.arange(family.train)
    if family.balanced:
        taught = _balanced(y[: 4 * family.train], family.train, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[family.model](seed % 2**31).fit(x[taught], y[taught])
    first = 4 * family.train if family.balanced else family.train
    rest = slice(first, None)
    x, y = x[rest], y[rest]
    # a shipped table may lack a class in few training samples
    rows = np.isin(y, model.classes_)
    x, y = x[rows], np.searchsorted(model.classes_, y[rows])
    x = x + family.noise * rng.standard_normal(x.shape)
    wrong = rng.random(len(y)) < family.flip
    y = np.where(wrong, rng.integers(0, len(model.classes_), len(y)), y).astype(np.int64)
    features, weight, bias = _opened(model, x)
    n = family.calibration
    return Problem(weight, bias, (features[:n], y[:n]), (features[n : n + TEST], y[n : n + TEST]))


def _balanced(y: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return rows with as many of every class, drawn with replacement where there are too few."""
    classes = np.unique(y)
    each = count // len(classes)
    rows = [np.flatnonzero(y == c) for c in classes]
    return np.concatenate([rng.choice(own, each, replace=len(own) < each) for own in rows])


def _opened(model: Any, x: NDArray[Any]) -> tuple[Floats, Floats | None, Floats | None]:
    """Return features with weight and bias of the head, or logits alone."""
    if isinstance(model, MLPClassifier):
        features = np.maximum(x @ model.coefs_[0] + model.intercepts_[0], 0)
        return _with_head(features, model.coefs_[1].T, model.intercepts_[1])
    if isinstance(model, LogisticRegression | LinearDiscriminantAnalysis):
        return _with_head(x, model.coef_, model.intercept_)
    p = model.predict_proba(x)
    votes = {"RandomForestClassifier": 60, "ExtraTreesClassifier": 60, "KNeighborsClassifier": 15}
    if (n := votes.get(type(model).__name__)) is not None:
        p = (n * p + 1 / p.shape[1]) / (n + 1)
    return np.log(np.maximum(p, 1e-12)).astype(np.float32), None, None


def _with_head(features: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
    if len(weight) == 1:
        weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    return tuple(np.ascontiguousarray(each, np.float32) for each in (features, weight, bias))  # type: ignore[return-value]


# ---- what every method does on a problem


@dataclass(frozen=True, eq=False)
class Run:
    """Scores of every method on one problem: cross-fitted, and on new samples after a fit on all."""

    family: str
    split: int
    labels: NDArray[np.int64]
    before: SampleScores
    crossed: dict[Method, SampleScores]
    test_labels: NDArray[np.int64]
    test_before: SampleScores
    tested: dict[Method, SampleScores]
    seconds: float


def run_of(name: str, split: int, seed: int) -> Run:
    """Cross-fit and test every method on a fresh problem."""
    family = FAMILIES[name]
    problem = make_problem(family, np.random.SeedSequence([seed, split, *name.encode()]).generate_state(1).item())
    settings = Settings(seed=split)
    classes = int(problem.logits(problem.test, problem.weight).at(np.array([0])).shape[1])
    allowed = ["none", *(m for m in maps_of(classes) if problem.weight is not None or not MAPS[m].needs_features)]
    search = "none" if problem.weight is None else settings.resolved_search
    strategy = Strategy(
        lambda weight: problem.logits(problem.calibration, weight),
        problem.weight,
        search,
        "auto",
        settings.for_search,
        allowed=tuple(allowed),
        options=settings.fit_options,
    )
    start = time.process_time()
    outcome = strategy.run(lambda *_: None)
    seconds = time.process_time() - start
    plain = problem.logits(problem.calibration, problem.weight)
    fits = MapFits(settings.fit_options)
    tested = {}
    for method in outcome.scores:
        if method.tilted and method != outcome.method:
            continue
        weight, fitted = outcome.weight, outcome.fitted
        if method != outcome.method:
            weight = problem.weight
            fitted = fits.chosen(method, plain)
        tested[method] = problem.logits(problem.test, weight).mapped_scores(fitted)
    crossed = {method: outcome.scores[method] for method in tested}
    before = problem.logits(problem.test, problem.weight).scores()
    return Run(name, split, problem.calibration[1], outcome.before, crossed, problem.test[1], before, tested, seconds)


def runs_of(work: Path, splits: int, seed: int, *, missing: bool = True) -> list[Run]:
    """Return all runs, those that are on disk as they are."""
    runs = []
    for split in range(splits):
        for name in FAMILIES:
            path = work / f"{seed}-{name.replace(', ', '_').replace(' ', '-')}-{split}.pickle"
            if not path.exists() and not missing:
                continue
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    run: Run | str = run_of(name, split, seed)
                except (TnaError, ValueError) as error:
                    run = f"{name}, {split}: {error}"
                path.write_bytes(pickle.dumps(run))
                print(f"{name}, {split}: {run if isinstance(run, str) else f'{run.seconds:.1f} s'}", flush=True)
            runs.append(pickle.loads(path.read_bytes()))
    for failed in (run for run in runs if isinstance(run, str)):
        print("left out:", failed)
    return [run for run in runs if not isinstance(run, str)]


# ---- rules

Accepts = Callable[[Run, Method, SampleScores], bool]
"""(run, method, scores of the best that keeps predictions) -> whether the method may change predictions."""


def _all(*conditions: Accepts) -> Accepts:
    return lambda *arguments: all(condition(*arguments) for condition in conditions)


def _better(errors: float) -> Accepts:
    """The NLL is below that of the best that keeps, by so many standard errors."""

    def accepts(run: Run, method: Method, kept: SampleScores) -> bool:
        worse, error = mean_and_error(sample_losses(run.crossed[method]) - sample_losses(kept))
        return worse < -errors * error

    return accepts


def _accurate(run: Run, method: Method, _: SampleScores) -> bool:
    """The accuracy is above the input's by a standard error."""
    rise, error = mean_and_error(run.crossed[method].hit.astype(np.float64) - run.before.hit)
    return rise >= error


def _balance_holds(run: Run, method: Method, _: SampleScores) -> bool:
    """The balanced accuracy does not fall."""
    found = Recalls.of(run.before.labelled(run.labels), run.crossed[method])
    return found.balanced_after >= found.balanced_before


def _none_loses(points: float, errors: float) -> Accepts:
    """No class of ten samples or more loses more than so many points and so many standard errors."""

    def accepts(run: Run, method: Method, _: SampleScores) -> bool:
        found = Recalls.of(run.before.labelled(run.labels), run.crossed[method])
        rows = found.samples >= 10
        loss = -found.change[rows]
        return not np.any((loss > points / 100 + 1e-12) & (loss > errors * found.error[rows]))

    return accepts


RULES: dict[str, Accepts | None] = {
    "change where accuracy does not fall": lambda *_: True,
    "loss, accuracy": _all(_better(1.96), _accurate),
    "loss, accuracy, balanced": _all(_better(1.96), _accurate, _balance_holds),
    "... no class loses 3 points and 1.64 errors, nor 10": _all(
        _better(2.94), _accurate, _balance_holds, _none_loses(3, 1.64), _none_loses(10, 0)
    ),
    "balanced, no class loses 10 points": _all(_balance_holds, _none_loses(10, 0)),
    "accuracy, balanced": _all(_accurate, _balance_holds),
    "accuracy, no class loses 10 points": _all(_accurate, _none_loses(10, 0)),
    "accuracy, balanced, no class loses 5 points": _all(_accurate, _balance_holds, _none_loses(5, 0)),
    "accuracy, balanced, no class loses 10 points": _all(_accurate, _balance_holds, _none_loses(10, 0)),
    "accuracy, balanced, no class loses 15 points": _all(_accurate, _balance_holds, _none_loses(15, 0)),
    "the package's": None,
    "keep": lambda *_: False,
}
"""Rules by what a method that changes predictions has to be; None for `Rule` itself."""


def chosen(run: Run, accepts: Accepts | None) -> Method:
    """Return what a rule chooses."""
    before = run.before.labelled(run.labels)
    if accepts is None:
        return Rule(careful=True).choose(run.crossed, before)
    keeping = {method: scores for method, scores in run.crossed.items() if method.keeps_order}
    kept = keeping[Rule().choose(keeping, before)]
    left = {m: scores for m, scores in run.crossed.items() if m.keeps_order or accepts(run, m, kept)}
    return Rule().choose(left, before)


def judged(run: Run, method: Method) -> dict[str, float]:
    """Return what a choice comes to on new samples."""
    old, new = run.test_before, run.tested[method]
    found = Recalls.of(old.labelled(run.test_labels), new)
    beyond = found.change < -3 * found.error
    return {
        "gain": float(np.mean(old.nll, dtype=np.float64) - np.mean(new.nll, dtype=np.float64)),
        "accuracy": float(np.mean(new.hit) - np.mean(old.hit)),
        "balanced": found.balanced_after - found.balanced_before,
        "ten": bool(np.any((found.change < -0.10) & beyond)),
        "twenty": bool(np.any((found.change < -0.20) & beyond)),
        "fell": found.balanced_after < found.balanced_before - 0.01,
        "changes": not method.keeps_order,
    }


def table(runs: list[Run]) -> str:
    """Return a row for each rule, as Markdown."""
    lines = [
        "| rule | NLL gain | of all, % | accuracy | balanced | a class loses 10 | 20 | balanced falls 1 | changes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    most = 0.0
    for name, accepts in RULES.items():
        results = [judged(run, chosen(run, accepts)) for run in runs]
        mean = {key: float(np.mean([each[key] for each in results])) for key in results[0]}
        most = most or mean["gain"]
        lines.append(
            f"| {name} | {mean['gain']:.4f} | {100 * mean['gain'] / most:.1f} | {100 * mean['accuracy']:+.2f} | "
            f"{100 * mean['balanced']:+.2f} | {100 * mean['ten']:.1f} % | {100 * mean['twenty']:.1f} % | "
            f"{100 * mean['fell']:.1f} % | {100 * mean['changes']:.0f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("out/rule"), help="what is kept between runs")
    parser.add_argument("--splits", type=int, default=6, help="fresh problems of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-rules", action="store_true", help="judge the runs that are there")
    a = parser.parse_args()
    with threadpool_limits(1):
        runs = runs_of(a.work, a.splits, a.seed, missing=not a.only_rules)
    plain = [run for run in runs if not FAMILIES[run.family].balanced]
    print(f"\nall, {len(runs)} runs of {len({run.family for run in runs})} families\n\n{table(runs)}")
    print(f"\nnot trained on balanced classes, {len(plain)} runs\n\n{table(plain)}")


if __name__ == "__main__":
    main()
