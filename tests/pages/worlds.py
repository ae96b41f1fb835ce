"""What the pages of the documentation take for granted: models, photographs, arrays, a data loader; small stand-ins.

A world is made in the current folder before its page runs there. What a page makes itself, in Python blocks or by
commands, is left to it, and what one block writes the commands after it read.
"""

import io
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import nodes_of, small_model, stumps, tensor_info
from tests.conftest import ROOT
from tests.support import PLAIN, words_of

# Where the data are stand-ins, the search is not what is tested: the limit of many members needs no draws.
QUICK = {"angle_step": 15.0, "ensemble_size": "inf", "device": "cpu"}

# Nor is the choice of a method, where a page says nothing of it: what it shows is run as it is shown.
CHOOSING = {"method", "search", "map", "predictions", "settings"}

N = 60
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


class World:
    """The repository's demo model and its data, in the current folder; the search is made quick."""

    def __init__(self) -> None:
        shutil.copytree(ROOT / "models", "models", ignore=shutil.ignore_patterns("*.tna.onnx"))

    def adapt(self, arguments: list[str]) -> list[str]:
        """Return the words of a command, whose output the page does not show, as they are to be run."""
        if "calibrate" not in arguments:
            return arguments
        return arguments + words_of(quick(word.removeprefix("--").partition("=")[0] for word in arguments))

    def names_for(self, text: str) -> dict[str, Any]:
        """Return the names that a Python block takes for granted."""
        return {}

    def check(self, line: str, output: str) -> None:
        """Assert what is known of the output of a command."""


def quick(said: Iterable[str]) -> dict[str, Any]:
    """Return settings that make a run quick and leave what was said, by its names, as it is."""
    names = {name.replace("-", "_") for name in said}
    unsaid = {name: value for name, value in QUICK.items() if name not in names}
    return unsaid | ({} if CHOOSING & names else PLAIN)


class StandIns(World):
    """Small random models and data under the names that a page uses.

    Attributes:
        variables: of Python blocks; `calib.npz` holds those of the block that writes this file.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        super().__init__()
        self.variables = stand_ins(class_names)

    def adapt(self, arguments: list[str]) -> list[str]:
        if "--expect-accuracy" in arguments:  # of our model, not of a ResNet
            arguments[arguments.index("--expect-accuracy") + 1] = "30"
        return super().adapt(arguments)

    def names_for(self, text: str) -> dict[str, Any]:
        return {**self.variables["all"], **(self.variables["calib.npz"] if "calib.npz" in text else {})}

    def check(self, line: str, output: str) -> None:
        assert "in another order" not in output, line
        if "--skip-bad" in line:
            assert f"{N - 1} images of 4 classes), 1 unreadable skipped" in output, line


def data_page() -> World:
    """docs/data.md, and how-to pages on images and text: class names in another order than the alphabet's."""
    return StandIns(("dog", "cat", "bird", "cow"))


def read_me() -> World:
    """README.md: the names in its examples; class names in the order of the alphabet, as it does not give them."""
    world = StandIns(("bird", "cat", "cow", "dog"))
    shutil.copy("model.onnx", "resnet.onnx")
    for k, photo in enumerate(sorted(Path("photos").rglob("*.png"))):
        target = Path("heldout" if k % 2 else "data", *photo.parts[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    return world


def models_page() -> World:
    """docs/models.md: a forest of one tree, that splits two classes at x = 0."""
    leaves = stumps(([0.95, 0.05], [0.05, 0.95]))
    outputs = ["label", "probabilities"]
    tree = helper.make_node("TreeEnsembleClassifier", ["x"], outputs, domain="ai.onnx.ml", **leaves)
    x, y = tensor_info("x", ["N", 1]), tensor_info("probabilities", ["N", 2])
    onnx.save(small_model([tree], [x], [y], domains={"ai.onnx.ml": 3}), "forest.onnx")
    rng = np.random.default_rng(8)
    x = rng.standard_normal((400, 1)).astype(np.float32)
    np.savez("data.npz", x=x, labels=((x[:, 0] > 0) ^ (rng.random(400) < 0.2)).astype(np.int64))
    return World()


class Variables(World):
    """The demo, and variables for the Python blocks of a page."""

    def __init__(self, variables: dict[str, Any]) -> None:
        super().__init__()
        self.variables = variables

    def names_for(self, text: str) -> dict[str, Any]:
        return self.variables


def positions_page() -> World:
    """docs/how-to/positions.md: a tagger of an embedding, a ReLU and a linear layer at each of 16 tokens."""
    rng = np.random.default_rng(0)
    table, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((500, 16), (16, 5)))
    nodes = nodes_of(
        "Gather table input_ids > embedded; Relu embedded > features; MatMul features weight > logits name=head"
    )
    x, y = tensor_info("input_ids", ["N", "T"], np.int64), tensor_info("logits", ["N", "T", 5])
    onnx.save(small_model(nodes, [x], [y], {"table": table, "weight": 2 * weight}), "tokens.onnx")
    ids = rng.integers(1, 500, (200, 16))
    tags = drawn(np.maximum(table[ids], 0) @ (2 * weight), 1)
    ids[np.arange(16) >= rng.integers(4, 17, (200, 1))] = 0
    np.savez("heldout.npz", input_ids=ids[100:], labels=np.where(ids[100:] == 0, -100, tags[100:]))
    return Variables({"input_ids": ids[:100], "tags": tags[:100]})


class AsWritten(World):
    """A page whose default choice of a method is what it is about."""

    def adapt(self, arguments: list[str]) -> list[str]:
        return [*arguments, "--device", "cpu"] if "calibrate" in arguments else arguments


def binary_page() -> World:
    """docs/how-to/binary.md trains trees, and has the same linear model with and without its Sigmoid."""
    for name in ("lightgbm", "xgboost", "onnxmltools", "skl2onnx"):
        pytest.importorskip(name)
    rng = np.random.default_rng(0)
    head, sigmoid = nodes_of("MatMul x weight > logit name=head; Sigmoid logit > probability")
    x, weight = {"x": ["N", 20]}, rng.standard_normal((20, 1)).astype(np.float32)
    onnx.save(small_model([head, sigmoid], x, {"probability": ["N", 1]}, {"weight": weight}), "binary.onnx")
    onnx.save(small_model([head], x, {"logit": ["N", 1]}, {"weight": weight}), "logit.onnx")
    samples = rng.standard_normal((400, 20)).astype(np.float32)
    np.savez("logits.npz", x=samples, labels=holds(samples @ weight, rng)[:, 0])
    return AsWritten()


def multi_label_page() -> World:
    """docs/how-to/multi-label.md: a linear layer of three logits before a Sigmoid, and tables."""
    rng = np.random.default_rng(0)
    weight = 3 * rng.standard_normal((4, 3)).astype(np.float32)
    nodes = nodes_of("MatMul x weight > logits name=head; Sigmoid logits > probabilities")
    x, y = tensor_info("x", ["N", 4]), tensor_info("probabilities", ["N", 3])
    onnx.save(small_model(nodes, [x], [y], {"weight": weight}), "labels.onnx")
    for name in ("calib", "heldout"):
        samples = rng.standard_normal((600, 4)).astype(np.float32)
        table = np.column_stack([samples, holds(samples @ weight, rng)])
        np.savetxt(f"{name}.csv", table, delimiter=",", header="red,green,blue,size,sea,sky,sun", comments="")
    return World()


def needing(*libraries: str) -> Callable[[], World]:
    """Return what makes the world of a page that needs libraries of others."""

    def page() -> World:
        for library in libraries:
            pytest.importorskip(library)
        return World()

    return page


def hugging_face_page() -> World:
    """docs/how-to/hugging-face.md: a folder with a tiny classifier of texts and its tokenizer, and labelled texts."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    words = ["good", "bad", "so", "not", "fine", "awful"]
    vocabulary = {word: k for k, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained("classifier")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(vocabulary), num_labels=2, **size)
    model = transformers.BertForSequenceClassification(config).eval()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 12)) for _ in range(400)]
    with torch.no_grad():
        logits = model(**fast(texts, return_tensors="pt")).logits
        model.classifier.weight *= 6 / logits.std()
        logits = model(**fast(texts, return_tensors="pt")).logits
        model.classifier.bias -= logits.mean(dim=0)  # both classes occur
    model.save_pretrained("classifier")
    labels = drawn((logits - logits.mean(dim=0)).numpy(), 1).tolist()
    for k, file in enumerate(("reviews.csv", "heldout.csv")):
        rows = zip(texts[k::2], labels[k::2], strict=True)
        Path(file).write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in rows)]))
    return World()


def drawn(logits: np.ndarray, seed: int) -> np.ndarray:
    """Labels for which the model is overconfident."""
    return np.argmax(logits / 3 + np.random.default_rng(seed).gumbel(size=logits.shape), axis=-1)


def holds(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels of 0 and 1 for which the model is overconfident."""
    return (rng.logistic(size=logits.shape) < logits / 3).astype(np.int64)


def image_model(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write a classifier of the mean colour; return its two matrices."""
    hidden, weight = (rng.standard_normal(s).astype(np.float32) for s in ((3, 16), (16, 4)))
    nodes = nodes_of(
        "GlobalAveragePool input > pooled; Flatten pooled > colour; MatMul colour hidden > h; Relu h > features; "
        "MatMul features weight > logits name=head"
    )
    x, y = tensor_info("input", ["N", 3, "H", "W"]), tensor_info("logits", ["N", 4])
    onnx.save(small_model(nodes, [x], [y], {"hidden": 2 * hidden, "weight": weight}), "model.onnx")
    return 2 * hidden, weight


def text_model(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write a classifier of the mean of the embeddings; return embedding and weight."""
    table, weight = (rng.standard_normal(s).astype(np.float32) for s in ((50, 16), (16, 4)))
    nodes = nodes_of(
        "Gather table input_ids > embedded; Cast attention_mask > mask to=FLOAT; Unsqueeze mask last > wide; "
        "Mul embedded wide > kept; ReduceMean kept > features axes=[1] keepdims=0; "
        "MatMul features weight > logits name=head"
    )
    inputs = [tensor_info(name, ["N", "T"], np.int64) for name in ("input_ids", "attention_mask")]
    tensors = {"table": 4 * table, "weight": weight, "last": np.array([-1])}
    onnx.save(small_model(nodes, inputs, {"logits": ["N", 4]}, tensors), "text.onnx")
    return 4 * table, weight


def table_model(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write a classifier of four numbers, and its data as tables; return the features and the labels."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    weight = rng.standard_normal((4, 3)).astype(np.float32)
    nodes = nodes_of("MatMul X weight > logits name=head")
    onnx.save(small_model(nodes, {"X": ["N", 4]}, {"logits": ["N", 3]}, {"weight": 4 * weight}), "tabular.onnx")
    x = rng.standard_normal((N, 4))
    y = drawn(x.astype(np.float32) @ (4 * weight), 5)
    names = ["age", "height", "weight", "income"]
    table = {**{name: x[:, place] for place, name in enumerate(names)}, "label": y}
    for file, columns in (("people.csv", table), ("customers.csv", {"customer": np.arange(N), **table})):
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        Path(file).write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    pyarrow.parquet.write_table(pa.table(table), "people.parquet")
    return x, y


class DataSet:
    """A data set of `datasets`, as far as it is used."""

    def __init__(self, table: Any, names: list[str]) -> None:
        info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        self._table = table.replace_schema_metadata({"huggingface": json.dumps(info)})

    def to_parquet(self, path: str) -> None:
        pytest.importorskip("pyarrow.parquet").write_table(self._table, path)


class Reader:
    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter([{"input": images[k : k + 30]} for k in range(0, len(images), 30)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def png(colour: np.ndarray) -> bytes:
    stream = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (12, 9), tuple(colour.tolist())).save(stream, "PNG")
    return stream.getvalue()


def write_images(colours: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> None:
    """Write the same images as folders and table."""
    pa = pytest.importorskip("pyarrow")
    images = [png(c) for c in colours]
    for folder in ("photos", "damaged"):
        for k, (image, y) in enumerate(zip(images, labels, strict=True)):
            path = Path(folder, names[y], f"{k}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
    next(Path("damaged").rglob("*.png")).write_bytes(b"damaged")
    for folder in ("flat", "2024"):
        Path(folder).mkdir()
    for k, image in enumerate(images):
        Path(f"flat/{k}.png").write_bytes(image)
        Path(f"2024/{k}.jpg").write_bytes(image)  # the content counts, not the name
    Path("labels.csv").write_text("path,label\n" + "".join(f"{k}.png,{names[y]}\n" for k, y in enumerate(labels)))
    Path("list.csv").write_text("path,label\n" + "".join(f"2024/{k}.jpg,{names[y]}\n" for k, y in enumerate(labels)))
    Path("classes.txt").write_text("\n".join(names))
    import pyarrow.parquet

    table = pa.table({"image": images, "label": [0] * N, "species": [names[y] for y in labels]})
    pyarrow.parquet.write_table(table, "animals.parquet")


def stand_ins(names: tuple[str, ...]) -> dict[str, Any]:
    """Make what a page takes for granted, and return the variables of its Python blocks."""
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(4)
    hidden, weight = image_model(rng)

    def logits_of(colour: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features = np.maximum(colour.astype(np.float32) @ hidden, 0)
        return features, features @ weight

    colours = rng.integers(0, 256, (N, 3), dtype=np.uint8)
    image_labels = drawn(logits_of((colours / 255 - MEAN) / STD)[1], 1)
    write_images(colours, image_labels, names)
    config = {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 2}
    config.update(image_mean=MEAN.tolist(), image_std=STD.tolist())
    Path("preprocessor_config.json").write_text(json.dumps(config))

    images = rng.standard_normal((N, 3, 6, 6)).astype(np.float32) * 3
    features, logits = logits_of(images.mean(axis=(2, 3)))
    labels = drawn(logits, 2)
    np.savez("images.npz", input=images)
    np.save("labels.npy", labels)
    others = 3 * np.random.default_rng(9).standard_normal(images.shape).astype(np.float32)
    np.savez("heldout.npz", input=others)
    np.save("heldout-labels.npy", drawn(logits_of(others.mean(axis=(2, 3)))[1], 6))
    table, text_weight = text_model(rng)
    input_ids = rng.integers(0, 50, (N, 7))
    attention_mask = (np.arange(7) < rng.integers(2, 8, N)[:, None]).astype(np.int64)
    text_logits = (table[input_ids] * attention_mask[..., None]).mean(axis=1) @ text_weight
    own = sorted(names)
    x, y = table_model(rng)
    data = {"image": [{"bytes": png(c), "path": None} for c in colours]}
    data_set = pa.table({**data, "label": [own.index(names[y]) for y in image_labels]})
    return {
        "calib.npz": {"input_ids": input_ids, "attention_mask": attention_mask, "labels": drawn(text_logits, 3)},
        "all": {
            "np": np,
            "data_set": DataSet(data_set, own),
            "features": features,
            "logits": logits,
            "labels": labels,
            "images": images,
            "torch_data_loader": [(images[k : k + 30], labels[k : k + 30]) for k in range(0, N, 30)],
            "calibration_data_reader": Reader(images),
            "X": x,
            "y": y,
            "data_frame": pa.table(
                {"age": x[:, 0], "height": x[:, 1], "weight": x[:, 2], "income": x[:, 3], "label": y}
            ),
        },
    }


WORLDS: dict[str, Callable[[], World]] = {
    "README.md": read_me,
    "docs/data.md": data_page,
    "docs/how-to/hugging-face.md": hugging_face_page,
    "docs/how-to/images.md": data_page,
    "docs/how-to/binary.md": binary_page,
    "docs/how-to/multi-label.md": multi_label_page,
    "docs/how-to/positions.md": positions_page,
    "docs/how-to/pytorch.md": needing("torch", "onnxscript"),
    "docs/how-to/text.md": data_page,
    "docs/how-to/notebook.md": needing("pandas"),
    "docs/how-to/sharing.md": needing("huggingface_hub"),
    "docs/how-to/tabular.md": needing("skl2onnx"),
    "docs/models.md": models_page,
    "docs/reference/calibrate.md": read_me,
}
"""Pages that need more than the demo."""
