"""Compatibility matrix: every written file in every runtime that is installed, and after every conversion.

    python benchmarks/runtimes.py                  # prints the tables of docs/compatibility.md
    python benchmarks/runtimes.py --output ''      # prints only

Packages of Node.js: `npm install` in tests/runtimes/web, or RUNTIMES_NODE_MODULES names their folder.

`tests/runtimes/matrix.py` holds the models and conversions, `tools.py` the runtimes; `test_runtimes.py` asserts what
is printed here.
"""

from __future__ import annotations

import logging
import platform
import sys
import tempfile
from pathlib import Path

from common import arguments, markdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.runtimes.decisions import GUARDED, write_guarded  # noqa: E402
from tests.runtimes.forms import FORMS, Form  # noqa: E402
from tests.runtimes.matrix import (  # noqa: E402
    CONVERSIONS,
    FILES,
    LIMITS,
    RUNTIMES,
    SOURCES,
    Drift,
    Matrix,
)
from tests.runtimes.tools import TOOLS, DoesNotRun, Runtime, disagreements, outputs_in  # noqa: E402

COLUMNS = ["original", "none", "ts", "ts-node", "ets", "isotonic", "aar"]
# Header of a table -> the columns that it takes the worst of.
HEADERS = {
    "original": ["original"],
    "all maps but `isotonic`": ["none", "ts", "ts-node", "ets", "aar"],
    "`isotonic`": ["isotonic"],
}


def column_of(name: str) -> str:
    """Map of a file, by its name."""
    return name.split()[1]


def compare(matrix: Matrix, tool: str, name: str, path: Path) -> Drift | None:
    """Compare one file, or its source, in a runtime or after a conversion; None if it does not run."""
    try:
        if tool in RUNTIMES:
            return matrix.ran(RUNTIMES[tool], name, path)
        return matrix.converted(CONVERSIONS[tool], name, path)
    except DoesNotRun:
        return None


def measure(matrix: Matrix, tool: str) -> dict[str, list[Drift | None]]:
    """Compare all files, and the models that they were written from, by column."""
    results: dict[str, list[Drift | None]] = {column: [] for column in COLUMNS}
    for kind in SOURCES:
        names = [name for name in FILES if name.split()[0] == kind]
        results["original"].append(compare(matrix, tool, names[0], matrix.source(names[0]).model))
        for name in names:
            results[column_of(name)].append(compare(matrix, tool, name, matrix.file(name)))
    return results


def worst(results: list[Drift | None]) -> str:
    """The largest difference, and how many files did not run."""
    values = [result.largest for result in results if result is not None]
    failed = len(results) - len(values)
    missing = f"{failed} of {len(results)} do not run" if failed else ""
    if not values:
        return missing
    value = "0" if max(values) == 0 else f"{max(values):.1e}"
    return f"{value}; {missing}" if missing else value


def page(n_samples: int) -> str:
    """Measure everything and return the page."""
    tools: dict[str, Runtime] = {**RUNTIMES, **CONVERSIONS}
    missing = {tool: why for tool, it in tools.items() if (why := it.missing())}
    with tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(Path(folder), n_samples)
        measured = {tool: measure(matrix, tool) for tool in tools if tool not in missing}
    with tempfile.TemporaryDirectory() as folder:
        guarded_table = guarded(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        forms_table = further_forms(Path(folder))
    exact = [tool for tool in measured if tool in RUNTIMES or CONVERSIONS[tool].exact]
    coarse = [tool for tool in measured if tool not in exact]

    def row(tool: str) -> list[str]:
        cells = ([drift for column in columns for drift in measured[tool][column]] for columns in HEADERS.values())
        return [tool, tools[tool].version(), *map(worst, cells)]

    def table(names: list[str]) -> str:
        return markdown(["", "version", *HEADERS], map(row, names), words=2)

    reasons = {
        (tool, why): [n for (t, n), w in LIMITS.items() if (t, w) == (tool, why)] for (tool, _), why in LIMITS.items()
    }
    limits = "".join(f"- {tool}: {why} ({', '.join(names)}).\n" for (tool, why), names in reasons.items())
    absent = "".join(f"- {tool}: {why}\n" for tool, why in missing.items())
    counts = {column: sum(column_of(name) == column for name in FILES) for column in COLUMNS[1:]}
    return TEXT.format(
        files=len(FILES),
        counts=", ".join(f"{number} {column}" for column, number in counts.items()),
        samples=f"{n_samples:,}",
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        same=table(exact),
        largest=table(coarse),
        guarded=guarded_table,
        forms=forms_table,
        versions=", ".join(f"{tool} {TOOLS[tool].version()}" for tool in present()),
        limits=limits,
        absent=f"\nNot measured:\n\n{absent}" if absent else "",
    )


def present() -> list[str]:
    """Return what runs guarded files here."""
    return [tool for tool in TOOLS if not TOOLS[tool].missing()]


def guarded(folder: Path) -> str:
    """Measure what guarded files decide in each runtime, and return a table."""
    matrix = Matrix(folder, 199)
    source = matrix.source("small")
    samples = matrix.samples("small")
    tools = [tool for tool in present() if tool != "ONNX Runtime"]
    rows = []
    for name in GUARDED:
        path = write_guarded(name, source, folder)
        expected = outputs_in("ONNX Runtime", path, samples)
        row = [name]
        for tool in tools:
            try:
                largest, others = disagreements(outputs_in(tool, path, samples), expected)
            except DoesNotRun:
                row.append("no")
                continue
            row.append("0" if largest == 0 else f"{largest:.1e}")
            if others:
                row[-1] += f"; {others} decisions differ"
        rows.append(row)
    return markdown(["output", *tools], rows)


def further_forms(folder: Path) -> str:
    """Measure files of further forms in each runtime, and return a table."""
    tools = [tool for tool in present() if tool != "ONNX Runtime"]
    rows = []
    for number, (name, write) in enumerate(FORMS.items()):
        place = folder / str(number)
        place.mkdir()
        form = write(place)
        rows.append([name, *(form_cell(tool, form) for tool in tools)])
    return markdown(["file", *tools], rows)


def form_cell(tool: str, form: Form) -> str:
    """Return how far a written file is off in a runtime, or that it or its original is refused."""
    moved: list[float] = []
    for path in (form.original, form.written):
        try:
            found = outputs_in(tool, path, form.x)
        except DoesNotRun:
            return "no" if moved else "original: no"
        moved.append(disagreements(found, outputs_in("ONNX Runtime", path, form.x))[0])
    return "0" if moved[1] == 0 else f"{moved[1]:.1e}"


TEXT = """# Compatibility

A written file runs wherever its model ran, with few exceptions, listed here. Generated by `python
benchmarks/runtimes.py` on {system}; `tests/runtimes/` asserts it.

`calibrate` wrote {files} files (by map: {counts}) from four models: the digits demo (convolutions, opset 17), a small
network with logits (opset 17), a binary one with a Sigmoid (opset 9), and a convolutional one with a Softmax, exported
from torch (opset 18). About half of the files have a tilted weight. They are compared on {samples} held-out samples a
model, in batches of 33 and one alone. A cell has the largest difference of a probability over all files of those maps;
`original` is the same for the models before recalibration.

## Runtimes, and conversions that keep float32

Compared with ONNX Runtime at its default settings. The tests allow 1e-5, and 1e-4 for `isotonic`: the steep steps of an
isotonic function magnify rounding in the probability before it. The ONNX checker with `full_check` and strict shape
inference accepts every file.

{same}

OpenCV 4.14.0, which has the classic engine only, runs all {files} files; the largest difference is 6.5e-06, for
`isotonic` 2.7e-05.

## Conversions to fewer bits

The converted file compared with the unconverted one, both in ONNX Runtime. The column `original` shows how much of the
difference is due to the conversion alone. "Map left out" converts all nodes except those whose name starts with
`tna_onnx`.

{largest}

Mean differences and changed predictions stay near those of the original, too: the tests allow a mean difference of
twice the original's plus 1e-3, and two points fewer equal predictions.

For single samples steep ramps of `isotonic` magnify what a conversion does to the logits. Where single probabilities
matter, choose `ts` or `ets`, or convert to float16 first (with onnxconverter-common) and recalibrate the result. For 8
bits, see [After quantisation](how-to/quantized.md). Dynamic quantisation leaves the matrix of `aar` in float;
for static quantisation, exclude the nodes named `tna_onnx` (`nodes_to_exclude`).

ONNX Runtime's own float16 converter, when given a `node_block_list`, may write a file that ONNX Runtime then refuses:
it gives two casts the same name. onnxconverter-common does not.

## Decisions

What `guard` adds to the small network, on 199 samples: the largest relative difference of a number from ONNX Runtime in
Python. Unless a cell says otherwise, all decisions are the same.

{guarded}

Versions: {versions}.

onnx2torch cannot sort, which `aps` and `raps` need.

## Further forms

Files written from other forms of models, on 33 samples: the largest difference from ONNX Runtime in Python, relative to
the number's size where that is above 1. *original: no* means that the runtime refuses the model even before
recalibration; *no*, that it takes the model and refuses the written file.

{forms}

Where OpenVINO and OpenCV's classic engine are off by a tenth, so is the original: they round the integers of the last
layer differently, and a score falls to another step.

## Known limits of others

{limits}{absent}"""


def main() -> None:
    """Parse and run."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=991, help="held-out samples a model")
    parser.add_argument("--output", help="file to write as well")
    a = parser.parse_args()
    logging.disable(logging.WARNING)
    text = page(a.samples)
    print(text)
    if a.output:
        Path(a.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
