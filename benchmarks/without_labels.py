"""How right `evaluate` is on data without labels: intervals, alarms, and what other estimates say of the same samples.

A pool of samples stands for all data. Each draw takes 3,000 of them with labels, fits temperature and biases to these
(`--map bias`), makes the reference, and takes N others, as they are, or changed. All draws are with replacement, so
that the pool is the whole truth. CBPE is the formula of NannyML: class probabilities that isotonic regression
calibrates one class at a time, normalised, and the mean of the predicted one.

    python benchmarks/without_labels.py --cifar10 FOLDER --draws 500 --output out/without_labels.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import arguments, markdown
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import softmax
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from tna_onnx.maps.base import apply_map
from tna_onnx.maps.linear import Bias
from tna_onnx.numerics.reference import Reference, projections

LABELLED = 3000
SIZES = (200, 1000, 5000)
LEVEL = 0.05
NEW_CLASS = 0.2
TINY = 1e-7
SEED = 57

Array = NDArray[Any]
Outputs = tuple[Array, Array | None]  # logits (N, C), projections of features or None


@dataclass(frozen=True, eq=False)
class Pool:
    """A model's outputs for all samples of a pool, as they are and changed; labels of `unknown` are -1."""

    name: str
    labels: Array
    same: Outputs
    changed: dict[str, Outputs]
    unknown: Outputs


def pools(cifar10: Path | None) -> Iterator[Pool]:
    """Yield six pairs of model and data; the last class of each is the one that the model does not know."""
    if cifar10 is not None:
        yield from image_pools(cifar10)
    yield table_pool("table, gradient boosting, 2 classes", 2, HistGradientBoostingClassifier(max_iter=60))
    yield table_pool("table, random forest, 8 classes", 8, RandomForestClassifier(100, min_samples_leaf=3))
    yield text_pool("text, logistic regression, 2 classes", 2, LogisticRegression(C=30))
    yield text_pool("text, network, 20 classes", 20, MLPClassifier((64,), max_iter=25))


def image_pools(folder: Path) -> Iterator[Pool]:
    """ResNet-20 on CIFAR-10 without its class truck; and animals against vehicles, with the frogs unknown."""
    files = sorted((folder / "test").glob("*/*"))
    names = sorted({path.parent.name for path in files})
    truth = np.array([names.index(path.parent.name) for path in files])
    images = np.stack([np.asarray(Image.open(path)) for path in files]).astype(np.float32) / 255
    rng = np.random.default_rng(0)
    variants = {
        "same": images,
        "blur": gaussian_filter(images, (0, 1, 1, 0)),
        "noise": images + 0.1 * rng.standard_normal(images.shape).astype(np.float32),
        "another site": np.clip(0.6 * images + 0.1, 0, 1) * np.array([1.1, 1, 0.9], np.float32),
    }
    model = onnx.load(folder / "resnet20.onnx")
    head = next(node for node in reversed(model.graph.node) if node.op_type == "Gemm")
    model.graph.output.append(onnx.ValueInfoProto(name=head.input[0]))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

    def run(pixels: Array) -> Outputs:
        x = ((pixels - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2)
        parts = [session.run(["logits", head.input[0]], {"input": x[k : k + 250]}) for k in range(0, len(x), 250)]
        return np.concatenate([p[0] for p in parts]), projections(np.concatenate([p[1] for p in parts]))

    outputs = {name: run(pixels) for name, pixels in variants.items()}
    truck, frog = names.index("truck"), names.index("frog")
    yield split("images, ResNet-20, 9 classes", truth, outputs, lambda s: s[:, :truck], truth == truck)
    vehicles = [names.index(name) for name in ("airplane", "automobile", "ship", "truck")]
    animals = [k for k in range(len(names)) if k not in vehicles and k != frog]
    two = np.where(np.isin(truth, vehicles), 1, 0)

    def grouped(s: Array) -> Array:
        return np.stack([np.logaddexp.reduce(s[:, rows], axis=1) for rows in (animals, vehicles)], axis=1)

    yield split("images, ResNet-20, 2 classes", two, outputs, grouped, truth == frog)


def split(
    name: str, labels: Array, outputs: Mapping[str, Outputs], of: Callable[[Array], Array], unknown: Array
) -> Pool:
    """Return a pool in which some samples are of a class that the model does not know."""
    known = ~unknown
    parts = {key: (of(s)[known], None if z is None else z[known]) for key, (s, z) in outputs.items()}
    s, z = outputs["same"]
    return Pool(name, labels[known], parts.pop("same"), parts, (of(s)[unknown], None if z is None else z[unknown]))


def table_pool(name: str, classes: int, model: Any) -> Pool:
    """Trees on a table; another site measures with an offset, and the noise is of the sensors."""
    x, y = make_classification(
        26_000, 20, n_informative=10, n_redundant=4, n_classes=classes + 1, n_clusters_per_class=2, class_sep=1.2,
        flip_y=0.02, random_state=0,
    )  # fmt: skip
    train = np.flatnonzero((np.arange(len(x)) < 4000) & (y < classes))
    model.set_params(random_state=0).fit(x[train], y[train])
    x, y = x[4000:], y[4000:]
    rng = np.random.default_rng(0)
    scale = x.std(axis=0)
    variants = {
        "same": x,
        "blur": 0.8 * x + 0.2 * x.mean(axis=0),
        "noise": x + 0.5 * scale * rng.standard_normal(x.shape),
        "another site": x + 0.4 * scale * rng.standard_normal(20),
    }
    outputs = {key: (np.log(np.maximum(model.predict_proba(v), 1e-3)), None) for key, v in variants.items()}
    return split(name, y, outputs, lambda s: s, y == classes)


def text_pool(name: str, classes: int, model: Any) -> Pool:
    """Texts of 30 words; the blur drops a third of them, noise adds common ones, another site prefers other words."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{k}" for k in range(2000)])
    common = rng.dirichlet(np.full(len(words), 0.3))
    topics = rng.dirichlet(np.full(len(words), 0.05), classes + 1)
    dialect = rng.dirichlet(np.full(len(words), 0.1))
    labels = rng.integers(0, classes + 1, 12_000)

    def texts(length: int, noise: int = 0, site: float = 0.0) -> list[str]:
        made = []
        for y in labels:
            p = (1 - site) * (0.78 * common + 0.22 * topics[y]) + site * dialect
            drawn = [rng.choice(words, length, p=p), rng.choice(words, noise, p=common)]
            made.append(" ".join(np.concatenate(drawn)))
        return made

    variants = {"same": texts(30), "blur": texts(20), "noise": texts(30, 10), "another site": texts(30, site=0.15)}
    vectors = TfidfVectorizer(token_pattern=r"\w+")
    train = np.flatnonzero((np.arange(len(labels)) < 4000) & (labels < classes))
    vectors.fit([variants["same"][k] for k in train])
    model.set_params(random_state=0).fit(vectors.transform([variants["same"][k] for k in train]), labels[train])

    def run(part: list[str]) -> Outputs:
        x = vectors.transform(part)
        logits = np.log(np.maximum(model.predict_proba(x), TINY))
        if not hasattr(model, "coefs_"):
            return logits, None
        return logits, projections(np.maximum(x @ model.coefs_[0] + model.intercepts_[0], 0))

    outputs = {key: run(part[4000:]) for key, part in variants.items()}
    return split(name, labels[4000:], outputs, lambda s: s, labels[4000:] == classes)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What is fitted to the labelled samples of one draw."""

    bias: Bias
    reference: Reference
    isotonic: list[IsotonicRegression]

    @classmethod
    def of(cls, pool: Pool, rng: np.random.Generator, start: Bias | None) -> Fitted:
        logits, z = pool.same
        rows = rng.integers(0, len(pool.labels), LABELLED)
        s, y = logits[rows], pool.labels[rows]
        bias = Bias.fit(lambda of, *aligned: of(s, y, None, *aligned), start=start)
        projected, name = (None, "") if z is None else (z[rows], "z")
        reference = Reference.fit(softmax(apply_map(bias, s), axis=1), y, projected, name=name)
        isotonic = [
            IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1).fit(p, y == k)
            for k, p in enumerate(softmax(s, axis=1).T)
        ]
        return cls(bias, reference, isotonic)

    def cbpe(self, raw: Array) -> float:
        # what `predict` gives, ten times as fast
        columns = [
            np.interp(p, fit.X_thresholds_, fit.y_thresholds_) for fit, p in zip(self.isotonic, raw.T, strict=True)
        ]
        calibrated = np.stack(columns, axis=1)
        total = calibrated.sum(axis=1)
        chosen = calibrated[np.arange(len(raw)), raw.argmax(axis=1)]
        return float(np.mean(np.where(total > 0, chosen / np.maximum(total, TINY), 1 / raw.shape[1])))


def draw(pool: Pool, kind: str, n: int, rng: np.random.Generator) -> tuple[Outputs, Array]:
    """Return outputs and labels of N samples."""
    labels = pool.labels
    rows = rng.integers(0, len(labels), n)
    if kind == "frequencies":
        classes = int(labels.max()) + 1
        y = rng.choice(classes, n, p=rng.dirichlet(np.ones(classes)))
        counts = np.bincount(labels)
        first = np.cumsum(counts) - counts
        rows = np.argsort(labels, kind="stable")[first[y] + rng.integers(0, counts[y])]
    logits, z = pool.changed.get(kind, pool.same)
    s, y, features = logits[rows], labels[rows], None if z is None else z[rows]
    if kind == "new class":
        replaced = np.flatnonzero(rng.random(n) < NEW_CLASS)
        others = rng.integers(0, len(pool.unknown[0]), len(replaced))
        s[replaced], y[replaced] = pool.unknown[0][others], -1
        if features is not None and pool.unknown[1] is not None:
            features[replaced] = pool.unknown[1][others]
    return (s, features), y


KINDS = ("same", "frequencies", "blur", "noise", "new class", "another site")


def measured(pool: Pool, draws: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of change and size."""
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    start = None
    for number in range(draws):
        rng = np.random.default_rng((SEED, number))
        fitted = Fitted.of(pool, rng, start)
        start = fitted.bias
        for kind in KINDS:
            for n in SIZES:
                (s, z), y = draw(pool, kind, n, rng)
                mapped = softmax(apply_map(fitted.bias, s), axis=1)
                expected, _, p = fitted.reference.expected(mapped, z)
                accuracy = float(np.mean(mapped.argmax(axis=1) == y))
                raw = softmax(s, axis=1)
                other = (float(raw.max(axis=1).mean()), fitted.cbpe(raw), float(np.mean(raw.argmax(axis=1) == y)))
                row = (accuracy, expected.value, expected.low or 0.0, expected.high or 0.0, p, *other)
                found.setdefault((kind, n), []).append(row)
    for (kind, n), rows in found.items():
        truth, estimate, low, high, other_p, confidence, cbpe, raw_truth = np.array(rows).T
        silent = other_p >= LEVEL
        errors = {
            "error": np.abs(estimate - truth),
            "confidence": np.abs(confidence - raw_truth),
            "cbpe": np.abs(cbpe - raw_truth),
        }
        yield {
            "pair": pool.name,
            "change": kind,
            "n": n,
            "accuracy": float(truth.mean()),
            "covered": float(np.mean((low <= truth) & (truth <= high))),
            "width": float(np.mean(high - low)),
            "alarms": float(np.mean(~silent)),
            "error_if_silent": float(errors["error"][silent].mean()) if silent.any() else None,
            **{name: float(error.mean()) for name, error in errors.items()},
        }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cifar10", type=Path, help="folder with test and resnet20.onnx")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for pool in pools(chosen.cifar10):
        rows += measured(pool, chosen.draws)
        chosen.output.write_text(json.dumps(rows, indent=1), "utf-8")
        print(pool.name, flush=True)
    head = (
        "pair",
        "change",
        "N",
        "accuracy",
        "covered",
        "width",
        "alarms",
        "off, if silent",
        "off",
        "confidence",
        "CBPE",
    )
    keys = ("accuracy", "covered", "width", "alarms", "error_if_silent", "error", "confidence", "cbpe")
    cells = [
        (row["pair"], row["change"], str(row["n"]), *("-" if row[k] is None else f"{100 * row[k]:.1f}" for k in keys))
        for row in rows
    ]
    print(markdown(head, cells, 2))


if __name__ == "__main__":
    main()
