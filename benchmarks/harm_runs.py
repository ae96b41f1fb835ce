"""Runs of the harm benchmark: every method on every split, scored by definition; a line of JSON each, no run twice.

`runs/METHOD.jsonl` holds the runs of a method; remove that file to repeat them after a change of the method. The
scores, and the test of whether a change is for the worse, use nothing of the package.
"""

from __future__ import annotations

import functools
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harm_methods
import numpy as np
from harm_methods import PEERS, installed
from harm_pairs import Pair
from harm_problems import Problem, build, probabilities_of, split
from numpy.typing import NDArray
from scipy.stats import beta
from threadpoolctl import threadpool_limits

from tna_onnx.errors import TnaError

BINS = 15
METRICS = ("nll", "brier", "ece", "accuracy", "balanced", "worst_recall")

# Smaller probabilities count as this one, as in scikit-learn's log loss.
_LEAST = float(np.finfo(np.float64).eps)

# Samples of a class from which on its recall says something, and the loss that counts.
_FEW = 20
_LOSS = 0.10

# Mean changes up to this are rounding: logits are float32.
_ROUNDING = 1e-6

# Two-sided 95 %: a change in one direction is seen by chance in 2.5 % of runs.
_Z = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of N samples, all (N,): log loss in nats, Brier score, confidence, 1 for a hit, label, predicted class."""

    nll: NDArray[np.float64]
    brier: NDArray[np.float64]
    confidence: NDArray[np.float64]
    hit: NDArray[np.float64]
    label: NDArray[np.int64]
    predicted: NDArray[np.int64]
    # whether what `confidence` is of came true; the hits, but of several labels
    event: NDArray[np.float64] | None = None

    @classmethod
    def of_labels(cls, probabilities: NDArray[np.float64], marks: NDArray[np.int64]) -> Scores:
        """Score (N, L) probabilities of labels: losses are means over labels; the rest is of each label, (N L,).

        The class of a label that holds is its number; what does not hold is one more class.
        """
        p = np.clip(probabilities.astype(np.float64), _LEAST, 1 - _LEAST)
        loss = -np.log(np.where(marks == 1, p, 1 - p))
        label = np.where(marks == 1, np.arange(p.shape[1]), p.shape[1]).ravel()
        predicted = (p > 0.5).astype(np.int64).ravel()
        event = marks.ravel().astype(np.float64)
        hit = (predicted == marks.ravel()).astype(np.float64)
        return cls(loss.mean(1), (2 * (p - marks) ** 2).mean(1), p.ravel(), hit, label, predicted, event)

    @classmethod
    def of(cls, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Scores:
        """Score (N, C) probabilities.

        Raises:
            ValueError: numbers that are not finite, or rows that do not sum to 1.
        """
        if not np.isfinite(probabilities).all() or np.abs(probabilities.sum(1) - 1).max() > 1e-3:
            raise ValueError("probabilities are not finite or do not sum to 1")
        p = probabilities.astype(np.float64)
        rows = np.arange(len(labels))
        one_hot = np.zeros_like(p)
        one_hot[rows, labels] = 1
        return cls(
            nll=-np.log(np.maximum(p[rows, labels], _LEAST)),
            brier=((p - one_hot) ** 2).sum(1),
            confidence=p.max(1),
            hit=(p.argmax(1) == labels).astype(np.float64),
            label=labels,
            predicted=p.argmax(1),
        )

    def metrics(self) -> dict[str, float]:
        """Means over the samples, the ECE, the mean recall, and the lowest one of a class of 20 samples or more."""
        values = {"nll": self.nll.mean(), "brier": self.brier.mean(), "accuracy": self.hit.mean()}
        count, recall = self.recalls()
        values |= {"balanced": recall.mean(), "worst_recall": recall[count >= min(_FEW, count.max())].min()}
        return {name: float(value) for name, value in values.items()} | {"ece": ece(self.confidence, self.came)}

    @property
    def came(self) -> NDArray[np.float64]:
        """What the confidence is of: 1 where it came true."""
        return self.hit if self.event is None else self.event

    def recalls(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return for each class with samples how many there are, and the share that is predicted right."""
        _, own, count = np.unique(self.label, return_inverse=True, return_counts=True)
        return count, np.bincount(own, self.hit) / count


def loses_recall(before: Scores, after: Scores) -> bool:
    """Whether a class loses more than 10 points of recall, and three standard errors of the paired difference."""
    for c in np.unique(before.label):
        change = (after.hit - before.hit)[before.label == c]
        if change.mean() < -max(_LOSS, 3 * change.std() / np.sqrt(len(change))):
            return True
    return False


def ece(confidence: NDArray[np.float64], hit: NDArray[np.float64]) -> float:
    """Expected calibration error over bins of equal width, (j/B, (j+1)/B]."""
    bins = np.clip(np.ceil(confidence * BINS).astype(np.intp) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins, hit - confidence, BINS)).sum() / len(hit))


def ece_of_parts(scores: Scores, size: int) -> float | None:
    """Mean ECE of parts of `size` samples; None if there are fewer.

    Binning makes the ECE of few samples larger, so values compare only between equal numbers of samples.
    """
    parts = range(0, len(scores.hit) - size + 1, size)
    values = [ece(scores.confidence[k : k + size], scores.hit[k : k + size]) for k in parts]
    return float(np.mean(values)) if values else None


def significant(change: NDArray[np.float64]) -> int:
    """Return the sign of the mean of paired changes if it lies beyond two-sided 95 % of a normal law, else 0."""
    mean = change.mean()
    error = change.std(ddof=1) / np.sqrt(len(change))
    return int(np.sign(mean)) if abs(mean) > max(_Z * error, _ROUNDING) else 0


def exact_interval(hits: int, runs: int) -> tuple[float, float]:
    """95 % interval of a share, from the binomial law.

    Source: Clopper & Pearson (1934).
    """
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, runs - hits + 1))
    high = 1.0 if hits == runs else float(beta.ppf(0.975, hits + 1, runs - hits))
    return low, high


INPUT = "input"
"""The model as it is."""

Run = dict[str, Any]
"""A method on a split: metrics on the test data and their changes, or `left_out`, the reason that there are none."""


def methods() -> tuple[str, ...]:
    """Return the names of all methods that can run here, the input first."""
    return (INPUT, *harm_methods.METHODS, *installed()[0])


def run_all(
    pairs: Sequence[Pair], splits: int, work: Path, cifar10: Path | None, workers: int, show: Callable[[str], None]
) -> None:
    """Make all runs that `work` does not hold yet."""
    with ProcessPoolExecutor(workers, initializer=_start) as pool:
        # one pair of each pool: two workers must not train one model
        sources = {pair.source: pair for pair in pairs}
        made = pool.map(functools.partial(build, work=work, cifar10=cifar10), sources.values())
        paths = dict(zip(sources, made, strict=True))
        show(f"{len(paths)} pools are there")
        done = {(run["pair"], run["split"], run["method"]) for run in load(work, pairs, splits)}
        tasks = []
        for pair in pairs:
            for number in range(splits):
                missing = [name for name in methods() if (pair.name, number, name) not in done]
                if missing:
                    tasks.append(pool.submit(_runs, pair, paths[pair.source], number, missing))
        for count, task in enumerate(as_completed(tasks), 1):
            runs = task.result()
            _keep(work, runs)
            seconds = sum(run["seconds"] for run in runs)
            show(f"{count} of {len(tasks)}: {runs[0]['pair']}, split {runs[0]['split']}, {seconds:.1f} s")


def load(work: Path, pairs: Iterable[Pair], splits: int) -> list[Run]:
    """Return all runs of these pairs and splits."""
    names = {pair.name for pair in pairs}
    lines = (line for path in sorted((work / "runs").glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
    return [run for run in map(json.loads, lines) if run["pair"] in names and run["split"] < splits]


def _keep(work: Path, runs: Iterable[Run]) -> None:
    folder = work / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    lines = defaultdict(list)
    for run in runs:
        lines[run["method"]].append(json.dumps(run) + "\n")
    for name, own in lines.items():
        with (folder / f"{name.replace(' ', '-')}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(own)


def _start() -> None:
    # imported before the first clock starts; then one core each, where libraries would take all
    installed()
    threadpool_limits(1)


def _runs(pair: Pair, path: Path, number: int, names: Sequence[str]) -> list[Run]:
    """Run methods on one split."""
    problem = split(pair, path, number)
    before = _scores(problem, probabilities_of(problem, problem.test.logits))
    runs = []
    for name in names:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries compared with
            fields = _run(name, problem, before)
        head = {"pair": pair.name, "split": number, "method": name}
        runs.append(head | {"seconds": time.process_time() - start} | fields)
    return runs


def _scores(problem: Problem, p: NDArray[np.float64]) -> Scores:
    """Score probabilities of the test data."""
    return (Scores.of_labels if problem.several else Scores.of)(p, problem.test.labels)


def _run(name: str, problem: Problem, before: Scores) -> Run:
    if name == INPUT:
        return _scored(before, before)
    if name in PEERS:
        return _run_peer(name, problem, before)
    if not harm_methods.applies(name, problem):
        return {"left_out": "not for such a model"}
    try:
        found = harm_methods.ours(name, problem)
    except TnaError as error:
        return {"left_out": str(error)}
    scores = _scores(problem, found.probabilities)
    run = _scored(before, scores)
    # changes have less noise than values, and the same bias: the input is not estimated
    bias = {
        name: getattr(found.after, name) - getattr(found.before, name) - run[f"d_{name}"]
        for name in ("nll", "accuracy")
    }
    part_ece = None if problem.several else ece_of_parts(scores, len(problem.calibration.labels))
    return run | {
        "seconds": found.seconds,
        "estimate_seconds": found.estimate_seconds,
        "chosen": found.chosen,
        "verdict": found.verdict,
        "unchanged": found.unchanged,
        "refused": found.refused,
        "bias": bias | ({} if part_ece is None else {"ece": found.after.ece - part_ece}),
    }


def _run_peer(name: str, problem: Problem, before: Scores) -> Run:
    peer = PEERS[name]
    if problem.several:
        return {"left_out": "several labels a sample"}
    classes = problem.test.logits.shape[1]
    if peer.sees == "features" and problem.weight is None:
        return {"left_out": "needs a linear head"}
    if classes > peer.classes:
        return {"left_out": f"more than {peer.classes} classes"}
    start = time.process_time()
    try:
        tested = peer.run(problem)
        seconds = time.process_time() - start
        return _scored(before, Scores.of(tested, problem.test.labels)) | {"seconds": seconds}
    except Exception as error:  # noqa: BLE001 - whatever another library raises, the other methods go on
        return {"left_out": f"failed: {type(error).__name__}: {str(error)[:200]}"}


def _scored(before: Scores, after: Scores) -> Run:
    first, second = before.metrics(), after.metrics()
    return {
        "n": len(after.hit),
        **second,
        **{f"d_{name}": second[name] - first[name] for name in METRICS},
        # sign of a significant change, positive for the worse
        "nll_change": significant(after.nll - before.nll),
        "accuracy_change": -significant(after.hit - before.hit),
        "class_loses": loses_recall(before, after),
        "changed": float(np.mean(before.predicted != after.predicted)),
    }
