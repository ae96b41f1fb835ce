"""Verdicts and intervals of cross-fitted results against the truth on 5,000 new samples, for every map and the default.

The families of `--develop` are those that the rules were made on; the others judge them and are never tuned on. Each
is a table and a classifier of `harm_problems`, with few to many calibration samples. A run keeps its cross-fitted
scores, so that another rule of the verdict is judged without fitting anew. Writes a table in Markdown.

    python benchmarks/verdicts.py --splits 4 --output verdicts.md
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harm_methods
import harm_problems
import numpy as np
from common import arguments, markdown
from harm_pairs import Pair
from harm_problems import Problem, build, split
from harm_runs import Scores, ece, exact_interval
from sklearn import datasets
from threadpoolctl import threadpool_limits

from tna_onnx.errors import TnaError
from tna_onnx.maps import MAPS
from tna_onnx.numerics.metric import POSITIVE_ECE
from tna_onnx.numerics.positive import NO_CLASSES, Classes
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.results.report import Comparison, compare_scores
from tna_onnx.results.verdict import Standing


def _friedman(which: int, classes: int) -> Any:
    """Return a maker of Friedman's second or third function in noise, cut into classes."""
    made = {2: datasets.make_friedman2, 3: datasets.make_friedman3}[which]

    def make(samples: int) -> harm_problems.Arrays:
        x, value = made(samples, noise=(125.0, 0.2)[which - 2], random_state=classes)
        cuts = np.quantile(value, np.arange(1, classes) / classes)
        return x, np.searchsorted(cuts, value)

    return make


def _waves(samples: int) -> harm_problems.Arrays:
    """Return samples of Breiman's three waveforms."""
    rng = np.random.default_rng(7)
    t = np.arange(21)
    waves = np.stack([np.maximum(6 - np.abs(t - centre), 0) for centre in (7, 15, 11)])
    y = rng.integers(0, 3, samples)
    share = rng.random((samples, 1))
    return share * waves[y] + (1 - share) * waves[(y + 1) % 3] + 1.5 * rng.standard_normal((samples, 21)), y


def _rare(samples: int) -> harm_problems.Arrays:
    """Return samples of two classes of Student's t, the second of which has 4 %."""
    rng = np.random.default_rng(8)
    y = (rng.random(samples) < 0.04).astype(np.int64)
    return rng.standard_t(4, (samples, 6)) + 1.0 * y[:, None], y


harm_problems.DATA |= {
    "rings-3": (harm_problems._shells(3), 300),
    "friedman2-2": (_friedman(2, 2), 300),
    "friedman3-6": (_friedman(3, 6), 500),
    "waves": (_waves, 250),
    "tails-rare": (_rare, 1500),
    "classes-30": (harm_problems._classes(30, 0.08, n_clusters_per_class=1), 2000),
}

_DEVELOP = """
binary mlp-64 60; binary mlp-64 200; binary mlp-64 1000; binary forest 100; binary boosting 500; moons svc 100
binary mlp-64 300 prior; binary naive-bayes 100; blobs naive-bayes 60; blobs mlp-64 200; classes-5 logistic 100
classes-5 mlp-32 150; classes-5 boosting 1000; classes-5 forest 200 noise; classes-10 mlp-128 200
classes-10 mlp-128 1000; classes-10 mlp-128 500 prior; classes-20 mlp-128 150; classes-20 mlp-128 3000
blobs logistic 100 drawn; blobs logistic 500 drawn; binary mlp-64 60 drawn; binary mlp-64 500 drawn
classes-10 mlp-128 200 drawn; classes-10 mlp-128 1000 drawn; binary logistic 200; classes-5 logistic 500
"""

_JUDGE = """
rings-3 mlp-32 60; rings-3 forest 150; rings-3 neighbours 400; friedman2-2 mlp-64 80; friedman2-2 logistic 200
friedman2-2 boosting 1000; friedman3-6 mlp-64 120; friedman3-6 naive-bayes 200; friedman3-6 boosting 800
waves naive-bayes 100; waves mlp-32 200; waves logistic 1000; waves svc 300 prior; tails-rare forest 1000
tails-rare mlp-32 3000; classes-30 mlp-128 200; classes-30 boosting 2000; classes-30 logistic 5000
friedman3-6 mlp-64 100 labels-10; rings-3 mlp-32 60 drawn; friedman2-2 mlp-64 100 drawn; waves logistic 200 drawn
friedman3-6 boosting 500 drawn; classes-30 mlp-128 1000 drawn
"""


def _pairs(table: str) -> list[Pair]:
    """Read a table of data, model, calibration samples, and what else there is to say."""
    pairs = []
    for line in filter(None, (part.strip() for part in table.replace("\n", ";").split(";"))):
        data, model, samples, *words = line.split()
        pairs.append(Pair(data, model, int(samples), "".join(set(words) - {"drawn"}), "drawn" in words))
    return pairs


_NATS = 0.001  # what is below is no gain

_MAPS = ("ts", "ets", "bias", "svs", "sms", "platt", "beta", "isotonic", "refit", "TNA")


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A run: its cross-fitted scores, and what the file does on new samples."""

    pair: str
    samples: int
    classes: int
    drawn: bool
    method: str
    chosen: str
    before: SampleScores
    crossed: SampleScores
    own: SampleScores | None  # cross-fitted scores of the file's method, where folds chose others
    fitted: SampleScores
    fold: Any
    same: bool  # whether no prediction can change
    truth: dict[str, float]  # after - before on the new samples

    def comparison(self) -> Comparison:
        """Compare as a report does."""
        fit = CrossFit(self.fitted, self.fold)
        classes = Classes(("0", "1")) if self.classes == 2 else NO_CLASSES

        def compared(after: SampleScores) -> Comparison:
            same = self.same and np.array_equal(self.before.hit, after.hit)
            return compare_scores(
                "", "cross-fitted", self.before, after, min(15, self.samples), 0, cross_fit=fit,
                same_predictions=same, classes=classes,
            )  # fmt: skip

        comparison = compared(self.crossed)
        return comparison if self.own is None else comparison.holding(compared(self.own))

    @property
    def better(self) -> bool:
        """Whether the file's NLL is lower on new samples, by more than the smallest effect."""
        return self.truth["nll"] < -_NATS

    @property
    def worse(self) -> bool:
        """Whether "improved" would be untrue: the NLL is no lower, and neither accuracy nor calibration is better."""
        truth = self.truth
        return truth["nll"] >= 0 and truth["accuracy"] <= 0 and truth[self.calibration] >= 0

    @property
    def calibration(self) -> str:
        """The calibration error that is judged."""
        return POSITIVE_ECE if self.classes == 2 else "ece"


def _run(pair: Pair, path: Path, number: int, name: str) -> Kept | None:
    problem = split(pair, path, number)
    if not harm_methods.applies(name, problem):
        return None
    strategy = harm_methods.strategy_of(name, problem)
    try:
        outcome = strategy.run(lambda *_: None)
        if outcome.unchanged:
            return None
        return _kept(pair, name, problem, strategy, outcome)
    except TnaError:
        return None


def _kept(pair: Pair, name: str, problem: Problem, strategy: Strategy, outcome: Outcome) -> Kept:
    chosen = strategy.chosen_in_folds(outcome)
    labels = problem.calibration.labels
    own = None
    if any(method != outcome.method for method in chosen) and outcome.method in outcome.scores:
        own = outcome.scores[outcome.method].labelled(labels)
    p = harm_methods.probabilities_after(problem, outcome)
    before, after = (
        Scores.of(each, problem.test.labels)
        for each in (harm_problems.probabilities_of(problem, problem.test.logits), p)
    )
    first, second = before.metrics(), after.metrics()
    truth = {metric: second[metric] - first[metric] for metric in ("nll", "ece", "accuracy", "brier")}
    classes = problem.test.logits.shape[1]
    if classes == 2:
        came = (problem.test.labels == 1).astype(np.float64)
        old = harm_problems.probabilities_of(problem, problem.test.logits)
        truth[POSITIVE_ECE] = ece(p[:, 1], came) - ece(old[:, 1], came)
    return Kept(
        pair.name, pair.calibration, classes, pair.drawn, name, outcome.method.label,
        outcome.before.labelled(labels), strategy.cross_fitted(outcome, methods=chosen).labelled(labels), own,
        outcome.logits.mapped_scores(outcome.fitted).labelled(labels),
        folds(len(labels), problem.seed, outcome.before.clusters), outcome.keeps_predictions, truth,
    )  # fmt: skip


def runs_of(pairs: Sequence[Pair], methods: Sequence[str], splits: int, work: Path) -> list[Kept]:
    """Return all runs; those that `work` holds are not made again."""
    runs: list[Kept] = []
    for pair in pairs:
        kept = work / "verdicts" / f"{pair.name.replace(', ', '_')}_{splits}_{len(methods)}.pickle"
        if not kept.exists():
            path = build(pair, work, None)
            with threadpool_limits(1):
                made = [_run(pair, path, k, name) for k in range(splits) for name in methods]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(pickle.dumps([run for run in made if run is not None]))
            print(pair.name, flush=True)
        runs += pickle.loads(kept.read_bytes())
    return runs


def row_of(runs: Sequence[Kept]) -> list[str]:
    """Return how often intervals hold the truth, gains are seen, and "improved" is untrue."""
    compared = [run.comparison() for run in runs]
    differences = [one.differences for one in compared]
    words = [Standing.of(one).word for one in differences]
    pairs = list(zip(runs, differences, strict=True))
    covered = [
        f"{100 * np.mean([d[name].low <= run.truth[name] <= d[name].high for run, d in pairs]):.1f}"
        for name in ("nll", "ece")
    ]
    gains = [word == "improved" for run, word in zip(runs, words, strict=True) if run.better]
    claims = [run.worse for run, word in zip(runs, words, strict=True) if word == "improved"]
    untrue = exact_interval(sum(claims), max(1, len(claims)))
    return [
        str(len(runs)), *covered, f"{sum(gains)} of {len(gains)} ({100 * np.mean(gains or [False]):.0f} %)",
        f"{sum(claims)} of {len(claims)} ({100 * untrue[0]:.1f} to {100 * untrue[1]:.1f} %)",
    ]  # fmt: skip


def main() -> None:
    """Make the runs that are missing, and write the table."""
    parser = arguments(__doc__)
    parser.add_argument("--develop", action="store_true", help="the families that rules were made on")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--work", type=Path, default=Path("out/harm"))
    parser.add_argument("--output", type=Path, default=Path("out/verdicts.md"))
    a = parser.parse_args()
    methods = [name for name in (harm_methods.DEFAULT, *_MAPS) if name in MAPS or name in harm_methods.METHODS]
    runs = runs_of(_pairs(_DEVELOP if a.develop else _JUDGE), methods, a.splits, a.work)
    parts = {
        "all": runs,
        "200 samples or fewer": [run for run in runs if run.samples <= 200],
        "more": [run for run in runs if run.samples > 200],
        "calibrated": [run for run in runs if run.drawn],
        **{name: [run for run in runs if run.method == name] for name in methods},
    }
    header = ["runs", "number", "NLL covered, %", "ECE covered, %", "gains seen", 'untrue "improved"']
    table = markdown(header, [[name, *row_of(part)] for name, part in parts.items() if part])
    a.output.parent.mkdir(parents=True, exist_ok=True)
    a.output.write_text(table + "\n", "utf-8")
    print(table)


if __name__ == "__main__":
    main()
