"""Thresholds of `--decide` against others on the same samples: goals beside scikit-learn's TunedThresholdClassifierCV,
bounds beside the threshold of an oracle and MAPIE's BinaryClassificationController.

    python benchmarks/operating_points.py goals     # 200 splits of five problems
    python benchmarks/operating_points.py bounds    # 500 draws at each of three sizes

Problems: breast cancer; fours among digits; two drawn ones with 1 % positives; four labels of digits (a label each).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import TunedThresholdClassifierCV

from tna_onnx.numerics.operating_points import DecisionRule, best_thresholds, bounded_threshold, goal_value

NO_COST = np.zeros((0, 0), np.float32)
RULE = DecisionRule("positive", 1, NO_COST)
GOALS = ("f1", "balanced-accuracy", "mcc")
SPLITS = 200
DRAWS = 500


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]  # no types
    """Takes its inputs for probabilities."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Given:  # noqa: ARG002 - as scikit-learn calls it
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.argmax(axis=1))


def two(scores: np.ndarray) -> np.ndarray:
    return np.stack([1 - scores, scores], axis=1).astype(np.float32)


def problems() -> Iterator[tuple[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """Yield names, and probabilities and labels of each label."""
    x, y = load_breast_cancer(return_X_y=True)
    yield "breast cancer", [scored(x / x.max(axis=0), y, 150)]
    x, digit = load_digits(return_X_y=True)
    yield "digits, four", [scored(x / 16, (digit == 4).astype(int), 300)]
    for seed, informative in ((0, 5), (1, 12)):
        x, y = make_classification(
            20_000, 20, n_informative=informative, weights=[0.99], flip_y=0.002, class_sep=1.5, random_state=seed
        )
        yield f"1 % positives, {informative} informative", [scored(x, y, 10_000)]
    held = (digit >= 5, digit % 2 == 0, np.isin(digit, [0, 6, 8, 9]), np.isin(digit, [2, 3, 5, 7]))
    x = load_digits().data / 16
    yield "digits, four labels", [scored(x, y.astype(int), 300) for y in held]


def scored(x: np.ndarray, y: np.ndarray, train: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    network = LogisticRegression(max_iter=2000).fit(x[:train], y[:train])
    return network.predict_proba(x[train:]).astype(np.float32), y[train:]


def goals() -> None:
    print(
        "| problem | goal | ours | scikit-learn | difference (95 %) | significantly worse |\n|---|---|---|---|---|---|"
    )
    for name, labels in problems():
        for goal in GOALS:
            ours, theirs = [], []
            for split in range(SPLITS):
                order = np.random.default_rng(split).permutation(len(labels[0][1]))
                calib, new = np.array_split(order, 2)
                both = [one_split(p, y, calib, new, goal) for p, y in labels]
                ours.append(np.mean([each[0] for each in both]))
                theirs.append(np.mean([each[1] for each in both]))
            gain = np.array(ours) - theirs
            # splits overlap: Nadeau & Bengio (2003), Machine Learning 52
            error = gain.std(ddof=1) * np.sqrt(1 / SPLITS + 1)
            print(
                f"| {name} | {goal} | {np.mean(ours):.4f} | {np.mean(theirs):.4f} | {gain.mean():+.4f} "
                f"({gain.mean() - 1.96 * error:+.4f} to {gain.mean() + 1.96 * error:+.4f}) | "
                f"{'yes' if gain.mean() + 1.96 * error < 0 else 'no'} |",
                flush=True,
            )


def one_split(p: np.ndarray, y: np.ndarray, calib: np.ndarray, new: np.ndarray, goal: str) -> tuple[float, float]:
    """Return the metric on new samples: of our threshold, and of scikit-learn's."""
    t = best_thresholds(RULE, p[calib], y[calib], goal)

    def reached(true: np.ndarray, decided: np.ndarray) -> float:
        # a test holds it against scikit-learn's; that one takes milliseconds for each of 100 thresholds
        return float(goal_value(np.bincount(2 * true + decided, minlength=4).reshape(2, 2), goal))

    tuned = TunedThresholdClassifierCV(Given().fit(p, y), scoring=make_scorer(reached), cv="prefit", refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned.fit(p[calib], y[calib])
    return reached(y[new], RULE.decide(p[new], t)), reached(y[new], tuned.predict(p[new]))


BOUNDED = {"recall": 0.9, "precision": 0.8, "fpr": 0.05}


def bounds() -> None:
    """Two normals, 2.5 apart, 20 % positives: the truth of each threshold is known."""
    print(
        "| N | bound | method | without a threshold | broken, % (95 %) | gained | an oracle gains |\n"
        "|---|---|---|---|---|---|---|"
    )
    for n in (200, 1000, 5000):
        for bound, level in BOUNDED.items():
            for method, choose in (("tna-onnx", ours), ("MAPIE", mapies)):
                rows = [tried(n, bound, level, choose, seed) for seed in range(DRAWS)]
                reached = [row for row in rows if row is not None]
                broken = sum(row[0] for row in reached)
                interval = stats.binomtest(broken, DRAWS).proportion_ci(0.95, "exact")
                gained = np.mean([row[1] for row in reached]) if reached else np.nan
                print(
                    f"| {n:,} | {bound} {level:g} | {method} | {DRAWS - len(reached)} | {100 * broken / DRAWS:.1f} "
                    f"({100 * interval.low:.1f} to {100 * interval.high:.1f}) | {gained:.4f} | "
                    f"{oracle(bound, level):.4f} |",
                    flush=True,
                )


SHARE, APART = 0.2, 2.5


def truth(cut: float) -> dict[str, float]:
    recall, fpr = stats.norm.sf(cut - APART), stats.norm.sf(cut)
    flagged = SHARE * recall + (1 - SHARE) * fpr
    return {"recall": recall, "fpr": fpr, "precision": SHARE * recall / max(flagged, 1e-12)}


def power(bound: str, known: dict[str, float]) -> float:
    """Return what is left to gain: the specificity beside a recall, the recall beside the others."""
    return 1 - known["fpr"] if bound == "recall" else known["recall"]


def oracle(bound: str, level: float) -> float:
    cuts = np.linspace(-3, 6, 9001)
    known = [truth(cut) for cut in cuts]
    kept = [each for each in known if (each[bound] <= level if bound == "fpr" else each[bound] >= level)]
    return max(power(bound, each) for each in kept)


def tried(n: int, bound: str, level: float, choose: object, seed: int) -> tuple[bool, float] | None:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < SHARE
    z = rng.standard_normal(n) + APART * y
    # the posterior probability
    p = 1 / (1 + np.exp(-(APART * z - APART**2 / 2 + np.log(SHARE / (1 - SHARE)))))
    assert callable(choose)
    t = choose(p.astype(np.float32), y, bound, level)
    if t is None:
        return None
    t = min(max(float(t), 1e-9), 1 - 1e-9)
    cut = (np.log(t / (1 - t)) - np.log(SHARE / (1 - SHARE)) + APART**2 / 2) / APART
    known = truth(cut)
    broken = known[bound] > level if bound == "fpr" else known[bound] < level
    return bool(broken), power(bound, known)


def ours(p: np.ndarray, y: np.ndarray, bound: str, level: float) -> float | None:
    threshold = bounded_threshold(p, y, bound, level, 0.05)
    return None if threshold is None else float(threshold)


def mapies(p: np.ndarray, y: np.ndarray, bound: str, level: float) -> float | None:
    from mapie.risk_control import BinaryClassificationController  # noqa: PLC0415 - heavy

    controller = BinaryClassificationController(
        two, bound, target_level=level, confidence_level=0.95, best_predict_param_choice="auto"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller.calibrate(p, y.astype(int))
    chosen: float | None = controller.best_predict_param
    return chosen


if __name__ == "__main__":
    benchmarks = {"goals": goals, "bounds": bounds}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=benchmarks)
    benchmarks[parser.parse_args().name]()
