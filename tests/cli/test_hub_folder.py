"""A folder as the Hub keeps it: the model in it, what the classes are called, how images become inputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.support import cli
from tna_onnx.errors import DataError
from tna_onnx.graph.load import load_model


@pytest.mark.parametrize("place", ["", "onnx"])
def test_the_folder_of_a_model_is_the_model(small: Small, place: str, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / place).mkdir(parents=True)
    shutil.copy(small.model, hub / place / "model.onnx")
    names = ["ant", "bee", "cat", "dog", "eel"]
    (hub / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names)), "model_type": "x"}))
    done = cli("calibrate", hub, small.calib, "--search", "none", "--map", "ts", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert (hub / place / "model.tna.onnx").is_file()
    assert f"the classes are named by {hub / 'config.json'}" in " ".join(done.output.split())
    report = tna_onnx.calibrate(hub, small.calib, output=tmp_path / "n.onnx", search="none", map="ts", device="cpu")
    assert [each.name for each in report.recall.classes] == names


@pytest.mark.parametrize("place", ["", "onnx"])
def test_text_is_tokenised_by_the_tokenizer_of_the_folder(place: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    hub = tmp_path / "hub"
    (hub / place).mkdir(parents=True)
    words = ["good", "bad", "film", "a", "not"]
    model = tokenizers.models.WordLevel({word: k for k, word in enumerate([*words, "[UNK]"])}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(hub / "tokenizer.json"))
    rng = np.random.default_rng(0)
    table = {"table": rng.standard_normal((6, 4)).astype(np.float32), "w": 3 * np.eye(4, 2, dtype=np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["z"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["z", "w"], ["logits"], name="head"),
    ]
    proto = small_model(nodes, [tensor_info("input_ids", ["N", 4], np.int64)], [tensor_info("logits", ["N", 2])], table)
    onnx.save(proto, hub / place / "model.onnx")
    ids = rng.integers(0, 5, (300, 4))
    logits = table["table"][ids].mean(axis=1) @ table["w"]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1).tolist()
    texts = [" ".join(words[k] for k in row) for row in ids.tolist()]
    data = tmp_path / "d.jsonl"
    data.write_text("\n".join(json.dumps({"text": t, "label": y}) for t, y in zip(texts, labels, strict=True)))
    stated = tna_onnx.evaluate(hub, data, tokenizer=hub, device="cpu")
    found = tna_onnx.evaluate(hub, data, device="cpu")
    assert found.metrics == stated.metrics
    assert any(f"tokenised by {hub}" in note for note in found.notes)
    assert "tokenised by" in cli("calibrate", hub, data, "--search", "none", "--map", "ts", "--device", "cpu").output
    # ids of tokens need none
    np.savez(tmp_path / "d.npz", input_ids=ids, labels=labels)
    assert tna_onnx.evaluate(hub, tmp_path / "d.npz", device="cpu").metrics == found.metrics
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"text": texts, "label": labels}), tmp_path / "d.parquet")
    assert tna_onnx.evaluate(hub, tmp_path / "d.parquet", device="cpu").metrics == found.metrics
    (hub / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="tokenizer=FOLDER"):
        tna_onnx.evaluate(hub, data, device="cpu")


def test_names_that_nobody_gave_are_none(small: Small, tmp_path: Path) -> None:
    shutil.copy(small.model, tmp_path / "model.onnx")
    for config in ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, {"num_classes": 5}, ["a"], "no JSON"):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        assert "id2label" not in load_model(tmp_path).said_of_classes
    assert "id2label" not in load_model(tmp_path).metadata


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    done = cli("inspect", tmp_path)
    assert (done.exit_code, "expected an ONNX model file" in done.output) == (2, True)
