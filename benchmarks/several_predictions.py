"""Models with several predictions a sample, from training to held-out numbers: tokens, next tokens, pixels.

Each model is trained here in a minute or two, exported with torch, calibrated (with the defaults, where nothing else is
said) and judged on samples that neither saw:

- punctuation: a BERT of two layers (transformers) says which mark follows each word, and whether the next word has a
  capital, of text without either: 6 classes. Text: the docstrings of installed packages, split by file.
- next token: a GPT-2 of two layers over the 300 most frequent words of the same text, one class a word; `--map ts`.
- digits: a convolutional net says to which digit each inked pixel belongs, in 32 x 32 scenes of four of scikit-learn's
  digits with noise: 10 classes. The background has no label. No digit is in two of the parts.

Intervals are of whole samples. Beside their width stands that of intervals that take all positions for independent.

    python benchmarks/several_predictions.py       # prints the page and writes docs/results/several.md
"""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import importlib.util
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, markdown, versions
from numpy.typing import NDArray

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "several.md"
PACKAGES = ("sklearn", "numpy")
LENGTH = 24  # words in a sample
VOCABULARY = 300
PAD = 0
UNKNOWN = 1
IGNORED = -100
PARTS = ("train", "calib", "eval")

# For one class a word, the choice among all maps takes many minutes; a temperature is the usual answer there.
SETTINGS = {"next token": {"search": "none", "map": "ts"}}

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Problem:
    """A model in a file, and the arrays of two of its parts."""

    name: str
    model: Path
    calib: Arrays
    held_out: Arrays


def files_of_text() -> list[Path]:
    """Python files of the packages, in one order on every machine."""
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found += sorted(Path(spec.origin).parent.rglob("*.py"))
    return found


def sentences(path: Path) -> Iterator[str]:
    """Paragraphs of prose in a file's docstrings: at least eight words, one of them long."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                if ">>>" not in paragraph and "---" not in paragraph and len(paragraph.split()) >= 8:
                    yield paragraph


def marked_words(text: str) -> list[tuple[str, int]]:
    """Words in lower case, each with 2 m + k: m is 1 for a comma and 2 for an end behind it, k for a capital next."""
    parts = re.findall(r"([A-Za-z]+)([^A-Za-z\s]*)", text)
    words = []
    for k, (word, mark) in enumerate(parts):
        following = parts[k + 1][0] if k + 1 < len(parts) else ""
        sign = 1 if "," in mark else 2 * any(end in mark for end in ".:;")
        words.append((word.lower(), 2 * sign + following[:1].isupper()))
    return words


@functools.cache
def text_parts(most: int) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Word numbers and marks, (N, LENGTH) each and padded, by part; a file is in one part, a paragraph is once."""
    by_part: dict[str, list[list[tuple[str, int]]]] = {part: [] for part in PARTS}
    seen = set()
    files = files_of_text()
    for k, at in enumerate(np.random.default_rng(0).permutation(len(files)).tolist()):
        part = PARTS[(0, 0, 1, 2)[k % 4]]
        for paragraph in sentences(files[at]):
            words = marked_words(paragraph)[:LENGTH]
            key = tuple(word for word, _ in words)
            if key not in seen and len(words) >= 8:
                seen.add(key)
                by_part[part].append(words)
    counts = collections.Counter(word for words in by_part["train"] for word, _ in words)
    number = {word: k + 2 for k, (word, _) in enumerate(counts.most_common(VOCABULARY - 2))}
    found = {}
    for part, samples in by_part.items():
        # from all files of the part: paragraphs of one file are alike
        chosen = np.random.default_rng(1).permutation(len(samples))[: most if part == "train" else most // 2]
        kept = [samples[k] for k in chosen.tolist()]
        tokens = np.full((len(kept), LENGTH), PAD, np.int64)
        marks = np.full((len(kept), LENGTH), IGNORED, np.int64)
        for row, words in enumerate(kept):
            tokens[row, : len(words)] = [number.get(word, UNKNOWN) for word, _ in words]
            marks[row, : len(words)] = [mark for _, mark in words]
        found[part] = tokens, marks
    return found


def text_arrays(tokens: NDArray[np.int64], labels: NDArray[np.int64]) -> Arrays:
    """What the model reads, and the labels."""
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).astype(np.int64), "labels": labels}


def next_words(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The word behind each word; none behind the last one."""
    following = np.concatenate([tokens[:, 1:], np.zeros((len(tokens), 1), np.int64)], axis=1)
    return np.where(following == PAD, IGNORED, following)


def trained(model: Any, inputs: list[Any], labels: Any, epochs: int, logits_of: Callable[..., Any]) -> Any:
    """Train with Adam on batches of 32; labels of -100 do not count."""
    torch: Any = importlib.import_module("torch")  # an extra of the tests

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        total = 0.0
        for rows in order.split(32):
            optimizer.zero_grad()
            loss = loss_of(logits_of(model, *(each[rows] for each in inputs)), labels[rows])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        print(f"  epoch {epoch + 1}: loss {total / len(labels):.3f}", file=sys.stderr)
    return model.eval()


def text_problem(name: str, folder: Path, samples: int, epochs: int) -> Problem:
    """Train and export one of the two models of text."""
    torch: Any = importlib.import_module("torch")  # extras of the tests
    transformers: Any = importlib.import_module("transformers")

    torch.manual_seed(0)
    parts = text_parts(samples)
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "punctuation":
        data = {part: text_arrays(tokens, marks) for part, (tokens, marks) in parts.items()}
        config = transformers.BertConfig(
            vocab_size=VOCABULARY, intermediate_size=96, max_position_embeddings=LENGTH, num_labels=6, **shape
        )
        config._attn_implementation = "eager"
        model = transformers.BertForTokenClassification(config)
    else:
        data = {part: text_arrays(tokens, next_words(tokens)) for part, (tokens, _) in parts.items()}
        config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=LENGTH)
        config._attn_implementation = "eager"
        model = transformers.GPT2LMHeadModel(config)

    class Scores(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            extra = {} if name == "punctuation" else {"use_cache": False}
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, **extra).logits

    train = {key: torch.from_numpy(array) for key, array in data["train"].items()}
    inputs = [train["input_ids"], train["attention_mask"]]
    scores = trained(Scores(), inputs, train["labels"], epochs, lambda m, *x: m(*x).transpose(1, 2))
    path = folder / f"{name.replace(' ', '_')}.onnx"
    names = ["input_ids", "attention_mask"]
    axes = {each: {0: "batch", 1: "words"} for each in (*names, "logits")}
    export(scores, tuple(each[:2] for each in inputs), path, names, "logits", axes)
    return Problem(name, path, data["calib"], data["eval"])


def export(model: Any, example: tuple[Any, ...], path: Path, inputs: list[str], output: str, axes: Any) -> None:
    """Write an ONNX file."""
    torch: Any = importlib.import_module("torch")  # an extra of the tests

    with torch.no_grad():
        torch.onnx.export(
            model,
            example,
            str(path),
            input_names=inputs,
            output_names=[output],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def scenes(images: NDArray[Any], labels: NDArray[Any], count: int, rng: np.random.Generator) -> Arrays:
    """Compose scenes (N, 1, 32, 32) of four digits, with noise; inked pixels have the class of their digit."""
    pixels = np.zeros((count, 1, 32, 32), np.float32)
    classes = np.full((count, 32, 32), IGNORED, np.int64)
    for scene in range(count):
        for corner in ((0, 0), (0, 16), (16, 0), (16, 16)):
            digit = int(rng.integers(len(images)))
            top, left = np.array(corner) + rng.integers(0, 9, 2)
            place = slice(top, top + 8), slice(left, left + 8)
            pixels[scene, 0][place] = images[digit]
            classes[scene][place] = np.where(images[digit] > 0.25, labels[digit], IGNORED)
    pixels += rng.normal(scale=0.25, size=pixels.shape).astype(np.float32)
    return {"scene": pixels, "labels": classes}


def digits_problem(folder: Path, samples: int, epochs: int) -> Problem:
    """Train and export the net that marks pixels."""
    torch: Any = importlib.import_module("torch")  # an extra of the tests
    from sklearn.datasets import load_digits  # noqa: PLC0415 - likewise

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    order = rng.permutation(len(images))
    cuts = np.split(order, [len(order) // 2, 3 * len(order) // 4])
    sizes = (samples, samples // 2, samples // 2)
    data = [scenes(images[rows], labels[rows], size, rng) for rows, size in zip(cuts, sizes, strict=True)]
    layers = torch.nn
    net = layers.Sequential(
        layers.Conv2d(1, 16, 3, padding=1),
        layers.ReLU(),
        layers.Conv2d(16, 24, 5, padding=2),
        layers.ReLU(),
        layers.Conv2d(24, 32, 5, padding=2),
        layers.ReLU(),
        layers.Conv2d(32, 10, 1),
    )
    train = [torch.from_numpy(data[0]["scene"])]
    trained(net, train, torch.from_numpy(data[0]["labels"]), epochs, lambda m, x: m(x))
    path = folder / "digits.onnx"
    axes = {"scene": {0: "batch", 2: "height", 3: "width"}, "logits": {0: "batch", 2: "height", 3: "width"}}
    export(net, (train[0][:2],), path, ["scene"], "logits", axes)
    return Problem("digits", path, data[1], data[2])


def problems(folder: Path, *, quick: bool) -> Iterator[Problem]:
    """Train one model after the other."""
    samples, epochs = (600, 2) if quick else (1500, 8)
    for name in ("punctuation", "next token"):
        print(name, file=sys.stderr)
        yield text_problem(name, folder, samples, epochs)
    print("digits", file=sys.stderr)
    yield digits_problem(folder, samples // 4, 3 * epochs)


def rows_of(problem: Problem, **settings: Any) -> tuple[Any, list[list[str]]]:
    """Calibrate, and return the report with the rows of its table."""
    import tna_onnx  # noqa: PLC0415 - after the arguments: the help loads nothing

    # a worse result belongs on the page too
    report = tna_onnx.calibrate(problem.model, problem.calib, eval=problem.held_out, fail_if_worse=False, **settings)
    c = report.comparison
    rows = []
    for name, factor in (("accuracy", 100), ("ece", 100), ("adaece", 100), ("nll", 1), ("brier", 1)):
        d = c.differences[name]
        values = (getattr(c.before, name), getattr(c.after, name), d.low, d.high)
        before, after, low, high = (f"{factor * value:.2f}" if factor > 1 else f"{value:.4f}" for value in values)
        rows.append([problem.name, name, before, after, f"{low} to {high}"])
    return report, rows


def width_ratio(problem: Problem, output: Path) -> float:
    """Width of the NLL's interval over that of one that takes positions for independent."""
    from tna_onnx.data import Data  # noqa: PLC0415 - after the arguments
    from tna_onnx.engine.outputs import score_model  # noqa: PLC0415
    from tna_onnx.extraction.sessions import in_rows, input_specs, open_model  # noqa: PLC0415
    from tna_onnx.graph.limits import NO_MODEL_LIMITS  # noqa: PLC0415
    from tna_onnx.graph.load import load_model  # noqa: PLC0415
    from tna_onnx.graph.outputs import class_output  # noqa: PLC0415
    from tna_onnx.numerics.intervals import paired_differences  # noqa: PLC0415
    from tna_onnx.runtime import parse_device  # noqa: PLC0415

    scores = []
    for path in (problem.model, output):
        model = load_model(path, NO_MODEL_LIMITS)
        found = class_output(model)
        session = in_rows(open_model(model, parse_device("cpu")), found, model.name)
        source = Data(problem.held_out).open(input_specs(session), found.n_classes, None, several=True)
        scores.append(score_model(session, found, source, 64, lambda *_: None)[0])
    own = paired_differences(scores[0], scores[1])["nll"]
    free = [each.take(np.arange(len(each))) for each in scores]
    for each in free:
        object.__setattr__(each, "clusters", None)
    naive = paired_differences(free[0], free[1])["nll"]
    return (own.high - own.low) / (naive.high - naive.low)


def page(folder: Path, *, quick: bool) -> str:
    """Run everything and write the page."""
    rows = []
    summary = []
    for problem in problems(folder, quick=quick):
        output = problem.model.with_suffix(".tna.onnx")
        report, found = rows_of(problem, output=output, **SETTINGS.get(problem.name, {}))
        rows += found
        summary.append(
            [
                problem.name,
                f"{report.classes:,}",
                f"{report.features}",
                f"{len(problem.calib['labels']):,}",
                f"{report.calibration.before.n:,}",
                f"{len(problem.held_out['labels']):,}",
                f"{report.comparison.before.n:,}",
                report.method,
                f"{report.verification.max_difference:.1e}",
                f"{width_ratio(problem, output):.2f}",
            ]
        )
    return "\n".join(
        [
            "# Several predictions a sample: tokens, next tokens, pixels",
            "",
            f"Written by `python benchmarks/several_predictions.py{' --quick' if quick else ''}` on "
            f"{platform.system()} {platform.machine()}; "
            f"{versions('tna-onnx', 'onnxruntime', 'torch', 'transformers', 'scikit-learn')}.",
            "",
            (__doc__ or "").partition("\n\n")[2].rpartition("\n\n    python")[0],
            "",
            "## What was calibrated",
            "",
            markdown(
                [
                    "model",
                    "C",
                    "n",
                    "calib",
                    "positions",
                    "eval",
                    "positions",
                    "method",
                    "checked, largest difference",
                    "width",
                ],
                summary,
            ),
            "",
            "*width*: of the 95 % interval of the NLL, over that of one that takes positions for independent.",
            "",
            "## Held-out numbers",
            "",
            markdown(["model", "metric", "before", "after", "95 % interval of the difference"], rows, words=2),
            "",
            "Accuracy, ECE and AdaECE in per cent, NLL in nats.",
            "",
        ]
    )


def main() -> None:
    """Print the page and write it."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and two epochs")
    parser.add_argument("--output", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--work", type=Path, help="folder for the models; a temporary one by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = page(folder, quick=args.quick)
    args.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
