"""docs/data.md is true: its commands and Python blocks run, in order, on small files; its table names the sources.

What the page takes for granted (models, photos, arrays, a data loader) is made here. What it makes itself, in Python
blocks, is left to them, and what one block writes the commands after it read.
"""

from __future__ import annotations

import functools
import io
import json
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from conftest import ROOT
from onnx import TensorProto, helper, numpy_helper
from test_data_commands import SOURCES

import tna_onnx
from tna_onnx.cli.commands import group
from tna_onnx.data import FORMATS

Image = pytest.importorskip("PIL.Image")
pa = pytest.importorskip("pyarrow")

PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
NOT_RUN = ("s3://",)  # of these forms, no server is at hand
# The search is not what is tested: the limit of many members needs no draws.
QUICK = {"angle_step": 15.0, "ensemble_size": "inf", "device": "cpu"}

N = 60
NAMES = ("dog", "cat", "bird", "cow")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def write(path: str, nodes: list[onnx.NodeProto], inputs: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    graph = helper.make_graph(
        nodes,
        "docs",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def drawn(logits: np.ndarray, seed: int) -> np.ndarray:
    """Labels for which the model is overconfident."""
    return np.argmax(logits / 3 + np.random.default_rng(seed).gumbel(size=logits.shape), axis=1)


def image_model(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write a classifier of the mean colour; return its two matrices."""
    hidden, weight = (rng.standard_normal(s).astype(np.float32) for s in ((3, 16), (16, 4)))
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["colour"]),
        helper.make_node("MatMul", ["colour", "hidden"], ["h"]),
        helper.make_node("Relu", ["h"], ["features"]),
        helper.make_node("MatMul", ["features", "weight"], ["logits"], name="head"),
    ]
    write(
        "model.onnx",
        nodes,
        {"input": (TensorProto.FLOAT, ["N", 3, "H", "W"])},
        {"hidden": 2 * hidden, "weight": weight},
    )
    return 2 * hidden, weight


def text_model(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write a classifier of the mean of the embeddings; return embedding and weight."""
    table, weight = (rng.standard_normal(s).astype(np.float32) for s in ((50, 16), (16, 4)))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["embedded", "wide"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["features"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["features", "weight"], ["logits"], name="head"),
    ]
    shape = (TensorProto.INT64, ["N", "T"])
    tensors = {"table": 4 * table, "weight": weight, "last": np.array([-1])}
    write("text.onnx", nodes, {"input_ids": shape, "attention_mask": shape}, tensors)
    return 4 * table, weight


class SavedDataSet:
    """What `datasets` writes; that library is not needed to read it."""

    def __init__(self, table: Any, names: list[str]) -> None:
        self._table, self._names = table, names

    def save_to_disk(self, path: str) -> None:
        folder = Path(path)
        folder.mkdir()
        with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", self._table.schema) as writer:
            writer.write_table(self._table)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
        info = {"features": {"label": {"names": self._names, "_type": "ClassLabel"}}}
        (folder / "dataset_info.json").write_text(json.dumps(info))


class Reader:
    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter([{"input": images[k : k + 30]} for k in range(0, len(images), 30)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def png(colour: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (12, 9), tuple(colour.tolist())).save(stream, "PNG")
    return stream.getvalue()


def write_images(colours: np.ndarray, labels: np.ndarray) -> None:
    """Write the same images as folders, shards and table."""
    images = [png(c) for c in colours]
    for folder in ("photos", "damaged"):
        for k, (image, y) in enumerate(zip(images, labels, strict=True)):
            path = Path(folder, NAMES[y], f"{k}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
    next(Path("damaged").rglob("*.png")).write_bytes(b"damaged")
    for folder in ("flat", "2024", "shards"):
        Path(folder).mkdir()
    for k, image in enumerate(images):
        Path(f"flat/{k}.png").write_bytes(image)
        Path(f"2024/{k}.jpg").write_bytes(image)  # the content counts, not the name
    Path("labels.csv").write_text("path,label\n" + "".join(f"{k}.png,{NAMES[y]}\n" for k, y in enumerate(labels)))
    Path("list.csv").write_text("path,label\n" + "".join(f"2024/{k}.jpg,{NAMES[y]}\n" for k, y in enumerate(labels)))
    Path("classes.txt").write_text("\n".join(NAMES))
    for shard in range(5):
        with tarfile.open(f"shards/calib-{shard:03}.tar", "w") as archive:
            for k in range(shard, len(images), 5):
                for suffix, content in (("jpg", images[k]), ("cls", NAMES[labels[k]].encode())):
                    member = tarfile.TarInfo(f"{k}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    import pyarrow.parquet

    table = pa.table({"image": images, "label": [0] * N, "species": [NAMES[y] for y in labels]})
    pyarrow.parquet.write_table(table, "animals.parquet")


def names_of_the_page(folder: Path) -> dict[str, Any]:
    """Make what the page takes for granted, and return the variables of its Python blocks."""
    rng = np.random.default_rng(4)
    hidden, weight = image_model(rng)

    def logits_of(colour: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features = np.maximum(colour.astype(np.float32) @ hidden, 0)
        return features, features @ weight

    colours = rng.integers(0, 256, (N, 3), dtype=np.uint8)
    image_labels = drawn(logits_of((colours / 255 - MEAN) / STD)[1], 1)
    write_images(colours, image_labels)
    config = {"image_processor_type": "ViTImageProcessor", "size": 224, "resample": 2}
    config.update(image_mean=MEAN.tolist(), image_std=STD.tolist())
    Path("preprocessor_config.json").write_text(json.dumps(config))

    images = rng.standard_normal((N, 3, 6, 6)).astype(np.float32) * 3
    features, logits = logits_of(images.mean(axis=(2, 3)))
    labels = drawn(logits, 2)
    np.save("images.npy", images)
    np.save("labels.npy", labels)
    np.savez("arrays.npz", images=images, labels=labels)
    Path("my_project.py").write_text(
        "import numpy as np\n\n"
        "class Tensor:\n    def __init__(self, values):\n        self.numpy = lambda: values\n\n"
        f"stored = np.load({str(folder / 'arrays.npz')!r})\n"
        "my_data_loader = [(Tensor(stored['images'][k:k + 30]), Tensor(stored['labels'][k:k + 30]))"
        f" for k in range(0, {N}, 30)]\n"
    )
    table, text_weight = text_model(rng)
    input_ids = rng.integers(0, 50, (N, 7))
    attention_mask = (np.arange(7) < rng.integers(2, 8, N)[:, None]).astype(np.int64)
    text_logits = (table[input_ids] * attention_mask[..., None]).mean(axis=1) @ text_weight
    own = sorted(NAMES)
    data = {"image": [{"bytes": png(c), "path": None} for c in colours]}
    data_set = pa.table({**data, "label": [own.index(NAMES[y]) for y in image_labels]})
    return {
        "calib.npz": {"input_ids": input_ids, "attention_mask": attention_mask, "labels": drawn(text_logits, 3)},
        "all": {
            "np": np,
            "data_set": SavedDataSet(data_set, own),
            "features": features,
            "logits": logits,
            "labels": labels,
            "images": images,
            "torch_data_loader": [(images[k : k + 30], labels[k : k + 30]) for k in range(0, N, 30)],
            "calibration_data_reader": Reader(images),
        },
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(tna_onnx, "calibrate", functools.partial(tna_onnx.calibrate, **QUICK))
        yield names_of_the_page(folder)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(page: dict[str, Any], number: int) -> None:
    language, text = BLOCKS[number]
    if language == "python":
        if text.startswith("# loader.py"):
            Path("loader.py").write_text(text)
            return
        names = next((names for name, names in page.items() if name in text), page["all"])
        exec(compile(text, f"docs/data.md, block {number}", "exec"), {"np": np, **names})
        return
    assert language == "sh", f"block {number}: say how a block in {language} is to be run"
    for line in text.splitlines():
        if any(form in line for form in NOT_RUN):
            continue
        program, *arguments = shlex.split(line)
        assert program == "tna-onnx"
        if "classes.txt" in line and "--expect-accuracy" in line:
            arguments[-1] = "30"  # of our model; 76 is that of ResNet-50
        quick = [f"--{k.replace('_', '-')}={v}" for k, v in QUICK.items() if k == "device" or "calibrate" in line]
        result = CliRunner().invoke(group, [*arguments, *quick])
        assert result.exit_code == 0, (line, result.output, result.exception)
        assert "in another order" not in result.output, line


def test_every_command_is_in_a_block_that_runs() -> None:
    assert len(COMMANDS) >= 18
    loose = [line for line in PAGE.splitlines() if re.match(r"\s*(\$ )?tna-onnx \w+ \S+\.onnx", line)]
    assert loose == COMMANDS
    assert sum(any(form in line for form in NOT_RUN) for line in COMMANDS) == 1


def test_the_skipped_image_is_counted(page: dict[str, Any]) -> None:
    line = next(line for line in COMMANDS if "--skip-bad" in line)
    result = CliRunner().invoke(group, [*shlex.split(line)[1:], "--device", "cpu"])
    assert f"{N - 1} images, 4 classes), 1 unreadable skipped" in result.output


def table_rows() -> list[list[str]]:
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("|")]
    start = next(k for k, row in enumerate(rows) if row[0].strip() == "`--format`")
    return [[cell.strip() for cell in row] for row in rows[start + 2 :] if len(row) == 5]


def test_the_table_names_every_format_and_the_tests_that_read_it() -> None:
    rows = table_rows()
    assert {row[0].strip("`") for row in rows if row[0].startswith("`")} == set(FORMATS)
    for row in rows:
        for name in re.findall(r"test_\w+\.py", row[3]):
            assert (ROOT / "tests/data" / name).exists() or (ROOT / "tests" / name).exists(), name
    named = [name for row in rows if "`" not in row[4] for name in row[4].split("; ")]
    assert sorted(named) == sorted(SOURCES)
    code = (ROOT / "tests/test_data_commands.py").read_text(encoding="utf-8")
    for name in re.findall(r"`(test_\w+)`", "".join(row[4] for row in rows)):
        assert f"def {name}(" in code


def test_every_flag_on_the_page_exists() -> None:
    known = {option for command in group.commands.values() for p in command.params for option in p.opts}
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert flags <= known, flags - known
    assert {"--cache", "--classes", "--expect-accuracy", "--labels", "--label-column", "--skip-bad"} <= flags
    assert "tna-onnx features" in PAGE
