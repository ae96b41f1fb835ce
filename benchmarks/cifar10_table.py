"""The paper's main table on two CIFAR-10 models: four maps alone, after a sparse search and in a complete one.

Features are collected once per model, over `calib` and `test` together. Each repeat draws its own stratified halves of
them, searches and fits on one half as `tna-onnx calibrate` does by default, and scores the other half. A row is the
mean and the standard deviation over the repeats. All rows share the halves, so differences between rows are paired.

    python benchmarks/cifar10_table.py --data FOLDER     # FOLDER: calib/, test/, resnet20.onnx, resnet20-wide.onnx
    python benchmarks/cifar10_table.py --help

Writes Markdown to --output and, beside it, every single run as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, markdown
from problems import open_head

from tna_onnx.calibration.provenance import versions
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.data import Recipe
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.readout import Head
from tna_onnx.maps import MAPS as ALL_MAPS
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.stats import SampleScores

MODELS = ("resnet20", "resnet20-wide")
RECIPE = Recipe(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
BINS = 15
# Draws of a calibrated model's hits, per repeat: the error of their mean is far below the last digit shown.
FLOOR_DRAWS = 200

Row = tuple[str, str]

# (search, map) -> label, in the paper's order
MAPS = {"irova": "IROvA", "ts": "TS", "ets": "ETS", "aar": "AAR"}
PAPER_ROWS = {("none", "none"): "None", ("sparse", "none"): "None +TNA"} | {
    (search, name): title + suffix
    for name, title in MAPS.items()
    for search, suffix in {"none": "", "sparse": " +TNA (sparse)", "complete": " +TNA (comp.)"}.items()
}
TILTED = [row for row in PAPER_ROWS if row[0] != "none"]

# The paper chooses the angle by the ECE; its own maps minimise what they always do.
_PAPER: dict[str, Any] = {"objective": "ece", "ets_loss": "squared"}

# Rows beside the paper's -> label, settings. The first two tell what TNA adds to a factor on the weight.
CONTROLS: dict[Row, tuple[str, dict[str, Any]]] = {
    ("limit", "none"): (
        "cos W",
        {"search": "sparse", "map": "none", "ensemble_size": "inf", "objective": "ece", "tilt_bias": False},
    ),
    ("none", "ts by ECE"): ("T by ECE", {"search": "none", "map": "ts", "objective": "ece"}),
    **{
        ("none", name): (name.upper(), {"search": "none", "map": name})
        for name in ("bias", "svs", "svs-mix", "sms", "refit")
    },
    ("auto", "auto"): ("Default", {}),
}
ROWS = PAPER_ROWS | {row: label for row, (label, _) in CONTROLS.items()}

# metric -> title, factor, decimals
METRICS = {
    "accuracy": ("Acc. %", 100, 2),
    "ece": ("ECE %", 100, 2),
    "adaece": ("AdaECE %", 100, 2),
    "nll": ("NLL", 1, 4),
}
ERRORS = ("ece", "adaece", "nll")

# Cho & Youn, "Tilt and Average: Geometric Adjustment of the Last Layer for Recalibration" (ICML 2024), main results
# (label tab:hardness), CIFAR-10: accuracy, ECE and AdaECE in percent of each model, mean_deviation over five runs as
# printed, rows as in ROWS. A stray letter before one figure (AAR, MobileNetV2, AdaECE) is left out.
PAPER_MODELS = ("WideResNet28x10", "MobileNetV2", "PreResNet110", "GoogleNet")
PAPER = """
96.37_.15 1.66_.1 1.49_.09 92.51_.26 3.49_.16 3.33_.24 95.28_.15 2.67_.13 2.62_.14 95.16_.22 2.82_.19 2.75_.21
96.37_.16 0.66_.14 0.59_.1 92.55_.25 0.78_.17 0.65_.24 95.28_.11 0.76_.03 0.4_.04 95.17_.21 1.57_.18 1.59_.21
96.29_.19 0.83_.29 0.56_.11 92.39_.24 1.24_.15 0.92_.29 95.16_.09 0.88_.12 0.73_.11 95.11_.18 1.01_.25 0.96_.08
96.32_.16 0.83_.23 0.55_.24 92.39_.29 1.22_.13 0.87_.32 95.31_.04 0.74_.08 0.4_.19 95.07_.16 0.96_.26 0.85_.09
96.32_.13 0.8_.2 0.62_.18 92.5_.19 1.18_.22 0.89_.2 95.31_.04 0.74_.08 0.4_.19 95.07_.16 0.96_.26 0.85_.09
96.37_.15 0.84_.05 0.71_.22 92.51_.26 1.06_.19 0.88_.27 95.28_.15 0.73_.09 0.65_.12 95.16_.22 2.14_.13 1.63_.3
96.37_.16 0.78_.13 0.75_.2 92.55_.25 0.81_.12 0.72_.25 95.28_.11 0.68_.09 0.41_.03 95.17_.21 2.09_.16 1.64_.31
96.39_.12 0.71_.14 0.53_.06 92.54_.19 0.79_.09 0.76_.19 95.13_.18 0.65_.11 0.45_.11 95.08_.16 1.96_.1 1.58_.13
96.37_.15 0.84_.06 0.79_.19 92.51_.26 0.85_.19 0.67_.24 95.28_.15 0.67_.1 0.5_.12 95.16_.22 2.14_.13 1.63_.3
96.37_.16 0.78_.14 0.72_.17 92.55_.25 0.83_.09 0.71_.26 95.28_.11 0.69_.08 0.42_.0 95.17_.21 2.09_.16 1.64_.31
96.39_.12 0.71_.14 0.53_.06 92.56_.2 0.79_.1 0.82_.25 94.66_.18 0.65_.11 0.45_.11 95.08_.16 1.96_.1 1.58_.13
96.33_.2 0.75_.08 0.45_.09 92.38_.32 0.91_.07 0.67_.1 95.17_.08 0.59_.1 0.45_.05 95.14_.24 1.04_.12 0.95_.19
96.35_.19 0.72_.05 0.45_.08 92.37_.33 0.83_.14 0.64_.12 95.3_.13 0.59_.18 0.34_.13 95.12_.26 0.98_.17 0.95_.22
96.41_.18 0.72_.23 0.44_.19 92.37_.33 0.83_.14 0.64_.12 94.99_.1 0.56_.13 0.34_.08 95.12_.22 0.9_.01 0.95_.2
"""

Run = dict[str, Any]
"""A row of one repeat on one model: metrics as fractions (NLL in nats), chosen angle in degrees, members averaged."""


def collect(folder: Path, name: str) -> tuple[FeatureTable, Head, dict[str, str]]:
    """Return features of `calib` and `test` together, the head, and SHA-256 of all that was read."""
    task, head = open_head(folder / f"{name}.onnx", folder / "calib", folder / "test", RECIPE)
    assert task.held_out is not None
    parts = {"calib": task.calibration, "test": task.held_out}
    features = np.concatenate([part.table.features for part in parts.values()])
    labels = np.concatenate([part.table.labels for part in parts.values()])
    digests = {half: part.source.digest() for half, part in parts.items()}
    return FeatureTable(features, labels), head, {"model": task.model.sha256, **digests}


def split(table: FeatureTable, seed: int) -> list[FeatureTable]:
    """Return two random halves of the samples, with half of every class each."""
    rng = np.random.default_rng(seed)
    first = np.zeros(len(table), bool)
    for label in np.unique(table.labels):
        rows = rng.permutation(np.flatnonzero(table.labels == label))
        first[rows[: len(rows) // 2]] = True
    return [FeatureTable(table.features[rows], table.labels[rows]) for rows in (first, ~first)]


def run_row(row: Row, calib: FeatureTable, test: FeatureTable, head: Head, seed: int) -> Run:
    """Search and fit on one half, score the other."""
    words = CONTROLS[row][1] if row in CONTROLS else {"search": row[0], "map": row[1], **_PAPER}
    # the command refuses to do nothing
    plain = row == ("none", "none")
    settings = Settings(bins=BINS, seed=seed, **(_PAPER if plain else words))
    options = settings.fit_options
    if row in PAPER_ROWS:
        options["objective"] = "nll"

    def logits(table: FeatureTable, weight: Any) -> HeadLogits:
        tilted = weight is not head.weight and settings.tilt_bias
        kept = kept_part(head.weight, weight) if tilted else 1.0
        return HeadLogits(table, weight, head.bias * head.working_type.type(kept))

    strategy = Strategy(
        lambda weight: logits(calib, weight),
        head.weight,
        "none" if plain else settings.resolved_search,
        "none" if plain else settings.resolved_map,
        settings.for_search,
        allowed=("none", *(name for name in ALL_MAPS if not ALL_MAPS[name].binary)),
        options=options,
    )
    outcome = strategy.run(lambda *_: None)
    assert outcome.weight is not None
    scores = logits(test, outcome.weight).mapped_scores(outcome.fitted)
    run = {"search": row[0], "map": row[1], "repeat": seed, **dataclasses.asdict(Metrics.of(scores, BINS))}
    run |= {"angle": outcome.chosen.angle, "members": outcome.chosen.ensemble_size, "chosen": outcome.method.label}
    return run | ({"floor": floor(scores, seed)} if row == ("none", "ts") else {})


def floor(scores: SampleScores, seed: int) -> float:
    """Return the mean ECE if each sample were hit with just its confidence: what finite data leave."""
    rng = np.random.default_rng(seed)
    draws = (dataclasses.replace(scores, hit=rng.random(len(scores)) < scores.confidence) for _ in range(FLOOR_DRAWS))
    return float(np.mean([Metrics.of(drawn, BINS).ece for drawn in draws]))


@dataclasses.dataclass(frozen=True)
class Table:
    """All runs of one model."""

    model: str
    runs: list[Run]

    def values(self, row: Row, key: str) -> np.ndarray:
        """Values of a row, one per repeat."""
        return np.array([run[key] for run in self.runs if (run["search"], run["map"]) == row])

    def change(self, row: Row, key: str, base: Row | None = None) -> np.ndarray:
        """Paired differences to another row, by default to the same map on the original weight."""
        change: np.ndarray = self.values(row, key) - self.values(base or ("none", row[1]), key)
        return change

    def best(self, key: str, rows: Iterable[Row] = ROWS) -> Row:
        """Row with the least mean."""
        return min(rows, key=lambda row: self.values(row, key).mean())


def pm(values: np.ndarray, key: str, sign: str = "") -> str:
    """Write mean ± standard deviation in the metric's unit."""
    _, factor, digits = METRICS[key]
    return f"{factor * values.mean():{sign}.{digits}f} ± {factor * values.std(ddof=1):.{digits}f}"


def span(values: np.ndarray) -> str:
    """Write the range of some values."""
    low, high = f"{values.min():g}", f"{values.max():g}"
    return low if low == high else f"{low} to {high}"


def result_table(table: Table) -> str:
    """Write all rows of a model; the least ECE and NLL in bold."""

    def cells(row: Row) -> Iterator[str]:
        yield ROWS[row]
        for key in METRICS:
            text = pm(table.values(row, key), key)
            yield f"**{text}**" if key in ("ece", "nll") and row == table.best(key) else text
        yield from (span(table.values(row, key)) if row in TILTED else "" for key in ("angle", "members"))

    return markdown(["Method", *(title for title, _, _ in METRICS.values()), "Angle °", "Members"], map(cells, ROWS))


def change_table(table: Table) -> str:
    """Write what TNA changes, row by row."""

    def cells(row: Row) -> Iterator[str]:
        yield ROWS[row]
        yield from (pm(table.change(row, key), key, "+") for key in METRICS)
        lower = table.change(row, "ece") < 0
        yield f"{lower.sum()} of {len(lower)}"

    titles = (f"Δ {title}" for title, _, _ in METRICS.values())
    return markdown(["Method", *titles, "Repeats with lower ECE"], map(cells, TILTED))


def count_table(tables: list[Table]) -> str:
    """Count, over models and maps, where TNA lowers a mean and where it raises it."""

    def cells(search: str, key: str) -> Iterator[str]:
        changes = [table.change((search, name), key) for table in tables for name in MAPS]
        yield f"{METRICS[key][0].removesuffix(' %')}, {search}"
        for sign in (-1, 1):
            side = [change for change in changes if sign * change.mean() > 0]
            yield f"{len(side)} of {len(changes)}"
            yield str(sum(map(is_clear, side)))

    header = ["Metric, search", "Lower", "by more than 1 SD", "Higher", "by more than 1 SD"]
    return markdown(header, (cells(search, key) for key in ERRORS for search in ("sparse", "complete")))


def summary(tables: list[Table]) -> Iterator[str]:
    """Yield the balance of ECE and NLL over all models, maps and searches, and the cases that stand out."""
    cases = [(table, row) for table in tables for row in TILTED if row[1] in MAPS]
    for key in ("ece", "nll"):
        parts = []
        for sign, verb in ((-1, "lowers"), (1, "raises")):
            side = [(t, row) for t, row in cases if sign * t.change(row, key).mean() > 0]
            clear = [f"{ROWS[row]} on `{t.model}`" for t, row in side if is_clear(t.change(row, key))]
            names = f" ({', '.join(clear)})" if clear else ""
            parts.append(f"{verb} it in {len(side)} of {len(cases)} cases, by more than 1 SD in {len(clear)}{names}")
        yield f"Mean {METRICS[key][0].removesuffix(' %')} on top of a map: TNA {parts[0]}; it {parts[1]}."


def is_clear(change: np.ndarray) -> bool:
    """Whether the mean of paired differences is larger than their standard deviation."""
    return bool(abs(change.mean()) > change.std(ddof=1))


def findings(table: Table) -> Iterator[str]:
    """Yield sentences on one model."""
    plain, tna, ts = ("none", "none"), ("sparse", "none"), ("none", "ts")
    ece = [pm(table.values(row, "ece"), "ece") for row in (plain, tna, ts)]
    versus = [pm(table.change(tna, key, ts), key, "+") for key in ("ece", "nll")]
    accuracy = [100 * table.change(row, "accuracy").mean() for row in TILTED]
    left = 100 * np.mean([run["floor"] for run in table.runs if "floor" in run])
    yield (
        f"ECE is {ece[0]} % as it comes, {ece[1]} % with TNA alone, {ece[2]} % with TS alone. TNA alone minus TS "
        f"alone, paired: ECE {versus[0]} %, NLL {versus[1]}."
    )
    for key in ("ece", "nll"):
        best, plain = table.best(key), table.best(key, [row for row in ROWS if row not in TILTED and row[0] == "none"])
        text = f"Least {METRICS[key][0].removesuffix(' %')}: {ROWS[best]}"
        if best in TILTED:
            text += (
                f"; against the best row without TNA ({ROWS[plain]}): {pm(table.change(best, key, plain), key, '+')}"
            )
        yield text + "."
    yield (
        f"A model that is perfectly calibrated at the confidences of TS would show an ECE of {left:.2f} % on as many "
        "samples; rows near that value cannot be told from calibrated ones."
    )
    chosen = Counter(run["chosen"] for run in table.runs if run["search"] == "auto")
    yield "Chosen by default: " + ", ".join(f"{name} in {count}" for name, count in chosen.most_common()) + "."
    low, high = (f"{round(value, 2) + 0.0:+.2f}" for value in (min(accuracy), max(accuracy)))  # + 0.0: no "-0.00"
    yield f"Mean accuracy changes by {low} to {high} points under TNA."


def paper_figures() -> dict[Row, list[tuple[str, str, str]]]:
    """Return the paper's accuracy, ECE and AdaECE as printed, per row and model."""
    lines = [line.replace("_", "±").split() for line in PAPER.strip().splitlines()]
    split_up = [[(x[k], x[k + 1], x[k + 2]) for k in range(0, len(x), 3)] for x in lines]
    return dict(zip(PAPER_ROWS, split_up, strict=True))


def paper_counts() -> Iterator[str]:
    """Yield how often TNA lowers and raises the paper's own means."""
    figures = paper_figures()
    for search in ("sparse", "complete"):
        for k, title in ((1, "ECE"), (2, "AdaECE")):
            signs = [
                np.sign(float(after[k].partition("±")[0]) - float(before[k].partition("±")[0]))
                for name in MAPS
                for before, after in zip(figures["none", name], figures[search, name], strict=True)
            ]
            lower, same, higher = (signs.count(sign) for sign in (-1, 0, 1))
            yield f"{title}, {search}: lower in {lower}, equal in {same}, higher in {higher}"


def document(tables: list[Table], head: dict[str, Any]) -> str:
    """Write the page."""
    n, repeats = tables[0].runs[0]["n"], head["repeats"]
    items = [*summary(tables), *(f"`{table.model}`: {text}" for table in tables for text in findings(table))]
    paper = markdown(
        ["Method", *PAPER_MODELS],
        ([PAPER_ROWS[row], *(" / ".join(x) for x in figures)] for row, figures in paper_figures().items()),
    )
    sections = [
        "# CIFAR-10: the paper's main table on two models",
        "Generated by `benchmarks/cifar10_table.py`; do not edit.",
        f"The {head['samples']:,} CIFAR-10 test images, stored as JPEG, are split {repeats} times into random halves, "
        f"stratified by class: search and fit on {head['samples'] - n:,}, scores on the other {n:,}. Figures are mean "
        f"± standard deviation (n - 1) over the {repeats} splits. ECE has {BINS} bins of equal width, AdaECE {BINS} of "
        "equal mass; NLL is in nats. Rows of the paper's table choose the angle by the ECE, as the paper does; other "
        "settings are the defaults of `tna-onnx calibrate`. *cos W* is the limit of infinitely many members, with the "
        "bias as it is; *T by ECE* is a temperature that minimises the ECE; *Default* is `tna-onnx calibrate` without "
        "flags. The seed is the number of the split. The splits share one pool of images, so the "
        "standard deviation says how much a row depends on the "
        "split, not how well the model is known.",
        "`resnet20` has 64 features and was trained on clean PNG images, so JPEG is a shift; `resnet20-wide` has 512 "
        "and was trained on JPEG. *Angle* and *Members* are the ranges of what the search chose (angle 0: the original "
        "weight; 0 members: the limit of many). A sparse search averages more members where accuracy asks "
        "for it; a complete one keeps to 10. Bold is the least mean ECE and NLL of a model, also where other "
        "rows lie within a standard deviation of it.",
    ]
    for table in tables:
        sections += [f"## {table.model}", result_table(table)]
    sections += [
        "## What it shows",
        "A case is a model, a map and a search; SD is the standard deviation of the paired difference over the splits.",
        "\n".join(f"- {item}" for item in items),
        "Over maps and models (the row without a map left out), how often TNA lowers a mean and how often it raises "
        "it, before rounding:",
        count_table(tables),
    ]
    for table in tables:
        sections += [f"What TNA changes on `{table.model}`, paired by split:", change_table(table)]
    sections += [
        "## The paper's figures",
        "Accuracy / ECE / AdaECE in percent on CIFAR-10, mean±deviation over five runs, copied from the main results "
        "of Cho & Youn (ICML 2024). Other models on other images: only the pattern compares.",
        paper,
        "Its own means, over the same four maps and four models: " + "; ".join(paper_counts()) + ".",
        "## How to make it",
        "    python benchmarks/cifar10_table.py --data FOLDER",
        "`FOLDER` holds `calib/` and `test/` (one sub-folder of images per class), `resnet20.onnx` and "
        "`resnet20-wide.onnx`. Every single run is in the JSON file beside this one. Made with "
        + ", ".join(f"{name} {number}" for name, number in head["versions"].items())
        + ".",
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    """Run all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("docs/results/cifar10.md"))
    parser.add_argument("--only", choices=MODELS, metavar="MODEL")
    a = parser.parse_args()
    if a.repeats < 2:
        parser.error("--repeats: at least 2 are needed for a standard deviation")
    begin, tables, digests = time.perf_counter(), [], {}
    for model in [a.only] if a.only else MODELS:
        table, head, digests[model] = collect(a.data, model)
        runs = []
        for seed in range(a.repeats):
            calib, test = split(table, seed)
            for row, label in ROWS.items():
                start = time.perf_counter()
                runs.append(run_row(row, calib, test, head, seed))
                seconds = time.perf_counter() - start
                print(f"{model}, repeat {seed}, {label}: ECE {runs[-1]['ece']:.4f} in {seconds:.1f} s", flush=True)
        tables.append(Table(model, runs))
    made_with = {"Python": platform.python_version(), **versions(), "scipy": version("scipy")}
    top = {"samples": len(table), "repeats": a.repeats, "bins": BINS, "versions": made_with, "sha256": digests}
    lines = ",\n".join(json.dumps({"model": table.model, **run}) for table in tables for run in table.runs)
    a.output.parent.mkdir(parents=True, exist_ok=True)
    a.output.with_suffix(".json").write_text(f'{json.dumps(top)[:-1]}, "runs": [\n{lines}\n]}}\n', "utf-8")
    a.output.write_text(document(tables, top), "utf-8")
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
