"""`fit`: scores in files, whatever computed them, give the model that `Calibrator` fits on the same arrays."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from scipy.special import softmax

import tna_onnx
from tests.api.test_calibrator import N, samples
from tests.support import ok, refused, with_options
from tna_onnx import Calibrator, DataError, UsageError
from tna_onnx.graph.nodes import scores_model

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_arrays_in_a_file_give_the_calibrator_of_the_arrays(tmp_path: Path) -> None:
    logits, labels = samples()
    np.savez(tmp_path / "s.npz", logits=logits, labels=labels)
    output = ok("fit", tmp_path / "s.npz", "-o", tmp_path / "c.onnx", "--json", tmp_path / "c.json").output
    assert "`scores`" in output
    assert "in place of" not in output
    fitted = Calibrator().fit(logits, labels)
    report = json.loads((tmp_path / "c.json").read_text("utf-8"))
    assert (report["method"], report["parameters"]) == (fitted.method_, fitted.parameters_)
    assert report["comparison"]["after"]["nll"] == fitted.report_.comparison.after.nll
    written = onnx.load(tmp_path / "c.onnx")
    assert [i.name for i in written.graph.input] == ["scores"]
    assert written.graph == fitted.to_onnx().graph


def test_calibrated_scores_are_returned_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((1000, 3)).astype(np.float32)
    np.savez(tmp_path / "s.npz", logits=logits, labels=np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))
    output = ok("fit", tmp_path / "s.npz", "-o", tmp_path / "c.onnx").output
    assert "copy" not in output  # there is no model that the file could be a copy of
    assert "scores that you have" in output


def test_data_are_not_written_over(tmp_path: Path) -> None:
    logits, labels = samples()
    path = tmp_path / "s.npz"
    np.savez(path, logits=logits, labels=labels)
    content = path.read_bytes()
    for name in ("output", "json"):
        with pytest.raises(UsageError, match="is one of the other files"):
            with_options(tna_onnx.fit, path, map="ts", **{name: path})
    refused(2, "choose another", "fit", path, "-o", path)
    assert path.read_bytes() == content


def test_the_order_of_files_and_rows_does_not_matter(tmp_path: Path) -> None:
    logits, labels = samples()
    table = pa.table({"logits": list(logits), "label": np.array(list("abcd"))[labels], "key": np.arange(N)})
    pq.write_table(table, tmp_path / "one.parquet")
    (tmp_path / "many").mkdir()
    for k, part in enumerate(np.array_split(np.random.default_rng(1).permutation(N), 5)):
        pq.write_table(table.take(part), tmp_path / f"many/{k}.parquet")
    for name in ("one.parquet", "many"):
        tna_onnx.fit(tmp_path / name, tmp_path / f"{name}.onnx", map="ts")
    assert (tmp_path / "one.parquet.onnx").read_bytes() == (tmp_path / "many.onnx").read_bytes()


def test_probabilities() -> None:
    logits, labels = samples()
    both = {"logits": logits, "probabilities": softmax(logits, axis=1), "labels": labels}
    found = {scores: tna_onnx.fit(both, scores=scores, map="ts").parameters for scores in ("logits", "probabilities")}
    assert found["logits"]["temperature"] == pytest.approx(found["probabilities"]["temperature"], rel=1e-4)
    with pytest.raises(DataError, match="has both"):
        tna_onnx.fit(both)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"scores": np.zeros((5, 2)), "labels": np.zeros(5)}, DataError, "expected logits or probabilities"),
        ({"logits": np.zeros((5, 2))}, DataError, "no labels; add"),
        ("none.npz", UsageError, "no such file"),
        (np.zeros((5, 2)), UsageError, "got ndarray"),
    ],
)
def test_data_that_cannot_be_used(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tna_onnx.fit(data)
    with pytest.raises(UsageError, match="search is about the head"):
        tna_onnx.fit(data, settings=tna_onnx.Settings(search="sparse"))
    with pytest.raises(UsageError, match="fit does not use tokenizer"):
        tna_onnx.fit(tna_onnx.Data("s.npz", tokenizer="folder"))


def test_one_logit_within_0_and_1_is_doubted() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    second = 1 / (1 + np.exp(-4 * (labels - 0.5 + 0.5 * rng.standard_normal(400))))
    model = scores_model(1)
    x = second.astype(np.float32)[:, None]
    (name,) = (i.name for i in model.graph.input)
    words: dict[str, Any] = {"output_kind": "logit", "device": "cpu"}
    for function, models in ((tna_onnx.evaluate, model), (tna_onnx.compare, [model, model])):
        said = with_options(function, models, {name: x, "labels": labels}, **words).notes
        assert any("between 0 and 1" in note for note in said)
    said = with_options(tna_onnx.evaluate, model, {name: 8 * x - 4, "labels": labels}, **words).notes
    assert not any("between 0 and 1" in note for note in said)
