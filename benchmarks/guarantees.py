"""Whether the promises of `guard` hold: coverage of sets and risk of accepted samples over random splits of real data.

Each model runs once over all samples; splits, thresholds and figures follow from its probabilities. Half of each split
decides, the other half judges. Reports how often a promise fails, beside how often it may. With --shift, thresholds of
the samples as they are judge shifted copies of the others: there the promises do not hold.

    python benchmarks/guarantees.py MODEL DATA [DATA ...] --splits 1000 --shift jpeg:10 noise:0.1
    python benchmarks/guarantees.py --table
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import arguments
from numpy.typing import NDArray
from scipy import stats

from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.numerics.conformal import coverage_band, quantile, rank_penalty, samples_needed, set_scores, tempered
from tna_onnx.numerics.selective import accept_above
from tna_onnx.runtime import parse_device

_SCORES = ("lac", "aps", "raps")
_LEVELS = (0.9, 0.95, 0.99)
_RISKS = (0.01, 0.02, 0.05)
_DELTA = 0.05


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities (N, C) and labels (N,) of all samples, in an order that shifted copies share."""

    p: NDArray[np.float32]
    labels: NDArray[np.int64]


def predictions(
    model: Path, paths: list[Path], recipe: Recipe | None, keep: Path | None, output_kind: str | None = None
) -> Predictions:
    """Run a model over data sets, one behind the other; a file that is there already is read instead."""
    if keep is not None and keep.is_file():
        with np.load(keep) as stored:
            return Predictions(stored["p"], stored["labels"])
    loaded = load_model(model)
    output = class_output(loaded, kind=output_kind)
    session = open_model(loaded, parse_device("cpu"))
    parts = []
    labels = []
    for path in paths:
        data = Data(path, preprocessing=recipe)
        names = data.class_names(loaded.metadata, output.labels, output.n_classes)
        source = data.open(input_specs(session), output.n_classes, names)
        labels.append(source.labels)
        parts += [output.probabilities(session.run([output.name], batch)[0]) for batch in source.batches(64)]
    found = Predictions(np.concatenate(parts).astype(np.float32), np.concatenate(labels))
    if keep is not None:
        np.savez(keep, p=found.p, labels=found.labels)
    return found


def shifted_images(folder: Path, shift: str, target: Path) -> Path:
    """Write a copy of an image folder with another quality (`jpeg:10`) or normal noise (`noise:0.1`, of the range)."""
    from PIL import Image  # noqa: PLC0415 - of no use to the others

    kind, _, amount = shift.partition(":")
    rng = np.random.default_rng(0)
    for path in sorted(folder.glob("*/*")):
        place = target / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        image = Image.open(path).convert("RGB")
        if kind == "jpeg":
            image.save(place / f"{path.stem}.jpg", quality=int(amount))
            continue
        pixels = np.asarray(image) / 255
        noisy = np.clip(pixels + float(amount) * rng.standard_normal(pixels.shape), 0, 1)
        Image.fromarray(np.uint8(np.round(255 * noisy))).save(place / f"{path.stem}.png")
    return target


def table_model(folder: Path) -> tuple[Path, Path]:
    """Write a random forest on scikit-learn's digits, as columns, and a table that it has not seen; return both."""
    from skl2onnx import to_onnx  # noqa: PLC0415 - only for the table
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.ensemble import RandomForestClassifier  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=400, random_state=0, stratify=y)
    forest = RandomForestClassifier(50, random_state=0).fit(x_train, y_train)
    model = folder / "forest.onnx"
    model.write_bytes(to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString())
    data = folder / "rest.npz"
    np.savez(data, X=x_rest, labels=y_rest)
    return model, data


def own_scores(found: Predictions, name: str) -> NDArray[np.float32]:
    """Return the set score of each sample's class, (N,); of `raps` with the penalty 0.01 behind the first class."""
    penalty = rank_penalty(found.p.shape[1], 1, 0.01) if name == "raps" else None
    order, scores = set_scores(found.p, name, penalty)
    rank = np.argmax(order == found.labels[:, None], axis=1)
    return np.asarray(scores[np.arange(len(rank)), rank], np.float32)


def orders(n: int, splits: int) -> Iterator[NDArray[np.int64]]:
    """Yield a random order of the samples for each split."""
    for seed in range(splits):
        yield np.random.default_rng(seed).permutation(n)


def show_sets(found: Predictions, n: int, splits: int, shifts: dict[str, Predictions]) -> None:
    """Print how often sets of new samples hold the class, and how often inside and outside of the band of 95 %.

    Below, the promise would fail. Above, many samples share one score, and sets are larger than they need to be.
    """
    size = len(found.p)
    for name in _SCORES:
        own = own_scores(found, name)
        moved = {shift: own_scores(each, name) for shift, each in shifts.items()}
        for level in _LEVELS:
            if n < samples_needed(level):
                print(f"| {name} {level:.0%} | too few samples |")
                continue
            low, high = coverage_band(n, level, size - n, 0.95)
            covered = []
            shifted: dict[str, list[float]] = {shift: [] for shift in shifts}
            for order in orders(size, splits):
                threshold = np.float32(quantile(own[order[:n]], level))
                covered.append(float(np.mean(own[order[n:]] <= threshold)))
                for shift, scores in moved.items():
                    shifted[shift].append(float(np.mean(scores[order[n:]] <= threshold)))
            # a hundred-millionth of a sample: shares and ends of the band round in other ways
            below = np.mean([share < low - 1e-9 for share in covered])
            above = np.mean([share > high + 1e-9 for share in covered])
            beyond = " | ".join(f"{np.mean(shares):.4f}" for shares in shifted.values())
            print(
                f"| {name} {level:.0%} | {np.mean(covered):.4f} | {low:.4f} to {high:.4f} | {1 - below - above:.3f} | "
                f"{below:.3f} | {above:.3f} | {beyond} |"
            )


def show_risks(found: Predictions, n: int, splits: int, shifts: dict[str, Predictions]) -> None:
    """Print how often the risk of accepted samples is above the one that was asked for."""
    size = len(found.p)
    confidence = found.p.max(axis=1)
    hit = found.p.argmax(axis=1) == found.labels
    moved = {shift: (each.p.max(axis=1), each.p.argmax(axis=1) == each.labels) for shift, each in shifts.items()}
    for risk in _RISKS:
        above = []
        accepted = []
        shifted: dict[str, list[float]] = {shift: [] for shift in shifts}
        for order in orders(size, splits):
            chosen = accept_above(confidence[order[:n]], hit[order[:n]], risk, _DELTA)
            if chosen is None:
                continue
            accepted.append(float(np.mean(confidence[order[n:]] >= chosen.threshold)))
            # the risk itself is not known: the error of all samples above the threshold stands for it
            above.append(bool(np.mean(~hit[confidence >= chosen.threshold]) > risk))
            for shift, (other, right) in moved.items():
                taken = other[order[n:]] >= chosen.threshold
                shifted[shift].append(float(np.mean(~right[order[n:]][taken])) if taken.any() else 0.0)
        limit = stats.binomtest(sum(above), splits).proportion_ci(0.95, "exact")
        beyond = " | ".join(f"{np.mean(shares) if shares else np.nan:.4f}" for shares in shifted.values())
        print(
            f"| accept {risk:.0%} | {len(accepted) / splits:.3f} | {np.mean(accepted) if accepted else 0:.3f} | "
            f"{sum(above) / splits:.4f} ({limit.low:.4f} to {limit.high:.4f}) | {beyond} |"
        )


def at_temperature(found: Predictions, temperature: float) -> Predictions:
    """Return probabilities p^(1/T): a model that rounds to 1 has many equal scores."""
    if temperature == 1:
        return found
    return Predictions(tempered(found.p, temperature).astype(np.float32), found.labels)


def show(title: str, found: Predictions, options: argparse.Namespace, shifts: dict[str, Predictions]) -> None:
    """Print both tables of a model."""
    n = options.samples or len(found.p) // 2
    found = at_temperature(found, options.temperature)
    shifts = {shift: at_temperature(each, options.temperature) for shift, each in shifts.items()}
    accuracy = np.mean(found.p.argmax(axis=1) == found.labels)
    heads = " | ".join(shifts)
    print(f"\n{title}: {len(found.p):,} samples, {n:,} decide, accuracy {accuracy:.4f}, {options.splits:,} splits")
    for shift, each in shifts.items():
        print(f"{shift}: accuracy {np.mean(each.p.argmax(axis=1) == each.labels):.4f}")
    print(
        f"\n| sets | coverage | 95 % band | inside | below | above | {heads} |\n|{' --- |' * 6}{' --- |' * len(shifts)}"
    )
    show_sets(found, n, options.splits, shifts)
    print(f"\n| accept | threshold found | accepts | risk above, allowed {_DELTA} | {heads} |")
    print(f"| --- | --- | --- | --- |{' --- |' * len(shifts)}")
    show_risks(found, n, options.splits, shifts)


def main() -> None:
    """Run all splits and print tables."""
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="*")
    parser.add_argument("--table", action="store_true", help="a forest on a table that scikit-learn has with it")
    parser.add_argument("--mean", type=float, nargs=3, help="of the channels of images")
    parser.add_argument("--std", type=float, nargs=3)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--samples", type=int, help="that decide; half of all by default")
    parser.add_argument("--temperature", type=float, default=1.0, help="of all probabilities")
    parser.add_argument("--shift", nargs="*", default=[], help="jpeg:QUALITY or noise:SIGMA, for folders of images")
    parser.add_argument("--keep", type=Path, help="folder that keeps probabilities")
    options = parser.parse_args()
    recipe = Recipe(mean=tuple(options.mean), std=tuple(options.std)) if options.mean else None
    with tempfile.TemporaryDirectory(prefix="guarantees-") as scratch_folder:
        folder = Path(scratch_folder)
        if options.table:
            model, data = table_model(folder)
            show("random forest, table", predictions(model, [data], None, None, "probabilities"), options, {})
            return
        shifts = {}
        for shift in ["", *options.shift]:
            paths = options.data
            keep = options.keep and options.keep / f"{options.model.stem}-{shift or 'plain'}.npz".replace(":", "-")
            if shift and not (keep and keep.is_file()):
                paths = [shifted_images(path, shift, folder / shift / path.name) for path in options.data]
            shifts[shift] = predictions(options.model, paths, recipe, keep)
        show(options.model.name, shifts.pop(""), options, shifts)


if __name__ == "__main__":
    main()
