"""The project's goals for speed and memory, each beside what is measured now.

Every row is run by the default settings. Ratios come from runs that take turns in one process; the median of the turns
counts. Rows about memory and whole commands run in processes of their own.

    python benchmarks/goals.py                           # all rows, about 25 minutes on two idle cores
    python benchmarks/goals.py --only search,demo --turns 5
    python benchmarks/goals.py --cifar10 FOLDER          # and the rows over a script by hand: FOLDER/{calib,test}/
"""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, markdown, timed
from problems import bare_products, make, sparse_search, write_large_head

from tna_onnx.engine.logits import HeadLogits, score_all, sum_chunks
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.isotonic import isotonic_log_odds
from tna_onnx.numerics.ops import one_thread
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.runtime import allowed_cores
from tna_onnx.search.candidates import SearchSettings, choose

HERE = Path(__file__).parent
DIGITS = HERE.parent / "models/digits"
TEMPERATURE = 1.5  # of the problems whose temperature is set: they are overconfident by it
CHUNK = 2**21  # logits in a chunk, as in a search with 2048 features

Row = tuple[str, str, list[float], str]
"""Case, goal, what was measured in each turn, and words on it."""

Problem = tuple[FeatureTable, np.ndarray, np.ndarray]


def problem(samples: int, n: int, classes: int, lean: float, wrong_labels: float = 0.0) -> Problem:
    """Return a problem that one temperature describes: `TEMPERATURE` is optimal for its NLL."""
    table, weight, bias = make(samples, n, classes, lean, 1.0, wrong_labels=wrong_labels)
    fitted = Temperature.fit(HeadLogits(table, weight, bias).reduce()).temperature
    return table, weight * np.float32(TEMPERATURE / fitted), bias


def ratios(ours: Callable[[], object], theirs: Callable[[], object], turns: int) -> list[float]:
    """Return seconds of one over seconds of the other, in turn; the first with threads as `calibrate` has them."""
    return [as_calibrate(ours) / timed(theirs) for _ in range(turns)]


def as_calibrate(run: Callable[[], object]) -> float:
    """Seconds with one thread of linear algebra but for large products."""
    with one_thread(allowed_cores()):
        return timed(run)


def search(turns: int) -> Iterator[Row]:
    """Sparse search over the products of its grid."""
    large = (12_500, 2048, 1000)
    cases: list[tuple[str, str, Callable[[], Problem]]] = [
        ("10 members are enough", "0.7", functools.partial(problem, *large, 0.5, 0.1)),
        ("accuracy asks for more", "1.0", functools.partial(problem, *large, 0.125)),
        *((f"random, seed {k}", "0.8", functools.partial(make, *large, 0.125, 0.15, seed=k)) for k in range(3)),
        ("n 256", "5", functools.partial(problem, 5000, 256, 100, 0.25)),
        ("n 1024", "5", functools.partial(problem, 5000, 1024, 100, 0.125)),
    ]
    settings = SearchSettings()
    for name, goal, made in cases:
        given = made()
        bare = functools.partial(bare_products, given[0], given[1], len(settings.grid))
        pool = sparse_search(*given, settings)
        chosen = pool[choose(pool, settings)]
        measured = ratios(functools.partial(sparse_search, *given, settings), bare, turns)
        size = f"N {len(given[0]):,}, n {given[1].shape[1]:,}, C {len(given[1]):,}"
        words = f"{chosen.ensemble_size or 'limit of many'} members, {chosen.angle:g} degrees"
        yield f"sparse search, {size}, {name}, over {len(settings.grid)} products", goal, measured, words


def complete(turns: int) -> Iterator[Row]:
    """Complete searches over the same products; the fit of `aar`."""
    table, weight, bias = make(12_500, 2048, 1000, 0.125, 0.15)
    settings = SearchSettings()
    bare = functools.partial(bare_products, table, weight, len(settings.grid))
    for name in ("ts", "ets"):
        strategy = Strategy(lambda w: HeadLogits(table, w, bias), weight, "complete", name, settings)
        measured = ratios(functools.partial(strategy.run, lambda *_: None), bare, turns)
        yield f"complete search with {name}, over the products", "1.0", measured, ""

    def fit() -> None:
        MAPS["aar"].fit(HeadLogits(table, weight, bias).reduce(features=True))

    yield (
        "fit of aar, N 12,500, n 2,048, C 1,000, s",
        "5",
        [timed(functools.partial(as_calibrate, fit)) for _ in range(turns)],
        "",
    )
    yield from scoring(table, weight, bias, bare, turns)


def scoring(
    table: FeatureTable, weight: np.ndarray, bias: np.ndarray, bare: Callable[[], object], turns: int
) -> Iterator[Row]:
    """Scores of as many weights as the grid has, and of the limit curve, beyond the products."""
    angles = SearchSettings().grid
    original = HeadLogits(table, weight, bias)

    def scores() -> None:
        for _ in angles:
            score_all([HeadLogits(table, weight, bias)])

    def limits() -> None:
        for angle in angles:
            original.scaled_scores(float(np.cos(np.radians(angle))))

    beyond = [ratio - 1 for ratio in ratios(scores, bare, turns)]
    curve = ratios(limits, bare, turns)
    together = [a + b for a, b in zip(beyond, curve, strict=True)]
    words = f"scores {np.median(beyond):.2f}, limit curve {np.median(curve):.2f}"
    yield f"scores and limit curve at {len(angles)} angles, over the products", "0.15", together, words


def reduce_of(logits: np.ndarray, labels: np.ndarray) -> Callable[..., Any]:
    """Reduce over chunks as the search makes them."""
    rows = max(1, CHUNK // logits.shape[1])
    cuts = [*range(0, len(labels), rows), len(labels)]

    def run(of: Callable[..., Any], *aligned: np.ndarray) -> Any:
        return sum_chunks(
            of, [(logits[a:b], labels[a:b], None, *(x[a:b] for x in aligned)) for a, b in itertools.pairwise(cuts)]
        )

    return run


def fits(turns: int) -> Iterator[Row]:
    """Temperature and isotonic fits: how many times as long scikit-learn takes."""
    from sklearn.calibration import _TemperatureScaling  # noqa: PLC0415 - optional

    rng = np.random.default_rng(0)
    for (samples, classes), goal in zip([(12_500, 1000), (5000, 10), (100_000, 100)], ("12", "3", "8"), strict=True):
        honest = 2 * rng.standard_normal((samples, classes))
        labels = (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
        logits = (2.5 * honest).astype(np.float32)
        double = logits.astype(np.float64)
        ours = functools.partial(Temperature.fit, reduce_of(logits, labels))
        theirs = functools.partial(_TemperatureScaling().fit, double, labels)
        repeats = turns * 5 if samples == 5000 else turns
        measured = [1 / ratio for ratio in ratios(ours, theirs, repeats)]
        yield f"scikit-learn's temperature over ours, {samples:,} x {classes:,}", f"at least {goal}", measured, ""
    yield isotonic(turns)


def isotonic(turns: int) -> Row:
    """A loop of scikit-learn's over ours."""
    from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415 - optional

    table, weight, bias = make(12_500, 2048, 1000, 0.125, 0.15)
    logits = table.features @ weight.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    hits = table.labels[:, np.newaxis] == np.arange(1000)

    def ours() -> None:
        for c in range(1000):
            isotonic_log_odds(p[:, c], hits[:, c])

    def theirs() -> None:
        for c in range(1000):
            IsotonicRegression(out_of_bounds="clip").fit(p[:, c], hits[:, c])

    measured = [1 / ratio for ratio in ratios(ours, theirs, turns)]
    return "scikit-learn's isotonic over ours, 12,500 x 1,000", "at least 6", measured, ""


# Starts the interpreter with arguments, and prints how it ended and what it took. The system counts the memory of who
# starts a process as that process's: this one is small.
_LAUNCH = """
import os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
child.returncode = os.waitstatus_to_exitcode(status)
print(child.returncode, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def cost(*words: str) -> tuple[float, float, float]:
    """Run this interpreter; return wall seconds, CPU seconds and the peak of resident memory in GB of 10^9 bytes."""
    done = subprocess.run([sys.executable, "-c", _LAUNCH, *words], stdout=subprocess.PIPE, text=True, check=True)
    code, wall, cpu, peak = done.stdout.split()
    if int(code) not in (0, 1):  # 1: a gate that was missed
        sys.exit(f"{' '.join(words)}: exit code {code}")
    return float(wall), float(cpu), float(peak) * 1024 / 1e9


def demo(turns: int) -> Iterator[Row]:
    """The command of the README, and what it waits for before it starts."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("-m", "tna_onnx", "calibrate", str(DIGITS / "model.onnx"), "--calib", str(DIGITS / "calib.npz")),
            *("--eval", str(DIGITS / "test.npz"), "-o", f"{folder}/out.onnx"),
        ]
        found = [cost(*command) for _ in range(turns)]
    yield "digits demo, CPU s", "3", [cpu for _, cpu, _ in found], "default, `--eval`"
    libraries = [1e3 * cost("-c", "import numpy, onnx, onnxruntime")[1] for _ in range(3 * turns)]
    imported = [1e3 * cost("-c", "from tna_onnx import calibrate")[1] for _ in range(3 * turns)]
    words = f"numpy, onnx and onnxruntime alone {np.median(libraries):.0f}"
    yield "`from tna_onnx import calibrate`, CPU ms", "300", imported, words


def large(turns: int) -> Iterator[Row]:
    """A head of 21,843 classes: time and memory of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        weight_bytes = write_large_head(Path(folder))
        for name, more in (("default", []), ("sparse search", ["--search", "sparse"])):
            command = [
                *("-m", "tna_onnx", "calibrate", f"{folder}/model.onnx", "--calib", f"{folder}/calib.npz"),
                *("--eval", f"{folder}/eval.npz", "-o", f"{folder}/out.onnx", *more),
            ]
            found = [cost(*command) for _ in range(turns)]
            words = f"CPU {np.median([cpu for _, cpu, _ in found]):.0f} s"
            case = f"head 21,843 x 1,280, N 2,000, {name}"
            yield f"{case}, wall s", "60", [wall for wall, _, _ in found], words
            times = [peak * 1e9 / weight_bytes for _, _, peak in found]
            yield f"{case}, peak memory over the weight", "4", times, f"{np.median([p for *_, p in found]):.2f} GB"


def by_hand(turns: int, folder: Path) -> Iterator[Row]:
    """The command over a script with Pillow, ONNX Runtime and scikit-learn."""
    for name in ("resnet20", "resnet20-wide"):
        files = [str(folder / part) for part in (f"{name}.onnx", "calib", "test")]
        with tempfile.TemporaryDirectory() as out:
            ours = [
                *("-m", "tna_onnx", "calibrate", files[0], "--calib", files[1], "--eval", files[2]),
                *("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225", "-o", f"{out}/out.onnx"),
            ]
            pairs = [(cost(*ours), cost(str(HERE / "by_hand.py"), *files)) for _ in range(turns)]
        words = f"{np.median([a[0] for a, _ in pairs]):.1f} s against {np.median([b[0] for _, b in pairs]):.1f} s"
        yield f"CIFAR-10, {name}, over a script by hand", "1.0", [a[0] / b[0] for a, b in pairs], words


PARTS = {"search": search, "complete": complete, "fits": fits, "demo": demo, "large": large}


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cifar10", type=Path, help="folder with calib/, test/ and the two networks")
    a = parser.parse_args()
    parts = [PARTS[name](a.turns) for name in a.only.split(",")]
    if a.cifar10:
        parts.append(by_hand(a.turns, a.cifar10))
    print(markdown(["case", "goal", "median (range)", "what it was"], []), flush=True)
    # each row when it is known: all of them take long
    for case, goal, found, words in itertools.chain.from_iterable(parts):
        print(
            f"| {case} | {goal} | {np.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) | {words} |", flush=True
        )


if __name__ == "__main__":
    main()
