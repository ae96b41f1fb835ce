"""`calibrate` end to end on real files: what is written, what is reported, what is left alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import PLAIN, TILTED, WALKED, with_options
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.scores import SampleScores


def run(path: Path, data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Run a file over an .npz with ONNX Runtime alone: (output, labels)."""
    arrays = np.load(data)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = [session.run(None, {name: arrays[name][k : k + 64]})[0] for k in range(0, len(arrays["labels"]), 64)]
    return np.concatenate(parts), arrays["labels"]


def test_reported_metrics_are_those_of_the_written_file(small: Small, tmp_path: Path) -> None:
    words = {"eval": small.test, "output": tmp_path / "o.onnx", **WALKED, "ensemble_size": 8}
    report = with_options(tna_onnx.calibrate, small.model, small.calib, **words)
    for path, reported in ((small.model, report.comparison.before), (tmp_path / "o.onnx", report.comparison.after)):
        logits, labels = run(path, small.test, "x")
        metrics = Metrics.of(SampleScores.of_logits(logits, labels))
        assert metrics.accuracy == reported.accuracy
        # float32 products, summed in another order
        assert vars(metrics) == pytest.approx(vars(reported), abs=1e-6)
    assert report.comparison.how == "held-out"
    assert report.comparison.after.ece < 0.6 * report.comparison.before.ece
    evaluation = tna_onnx.evaluate(tmp_path / "o.onnx", small.test, device="cpu")
    assert vars(evaluation.metrics) == pytest.approx(vars(report.comparison.after), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"map": "ets"}, {"fold": False, "search": "none"}])
def test_nothing_but_the_head_and_the_block_changes(small: Small, tmp_path: Path, options: dict[str, object]) -> None:
    output, before = tmp_path / "o.onnx", small.model.read_bytes()
    settings = {"eval": small.test, "output": output, **TILTED, **options}
    report = with_options(tna_onnx.calibrate, small.model, small.calib, **settings)
    assert small.model.read_bytes() == before
    onnx.checker.check_model(str(output), full_check=True)
    old, new = onnx.load(small.model), onnx.load(output)
    kept = {t.name: t.SerializeToString() for t in new.graph.initializer}
    for tensor in old.graph.initializer:
        if tensor.name not in ("weight", "bias"):
            assert kept[tensor.name] == tensor.SerializeToString()
    assert list(new.graph.input) == list(old.graph.input)
    assert list(new.graph.output) == list(old.graph.output)
    assert (new.opset_import, new.ir_version) == (old.opset_import, old.ir_version)
    assert {p.key: p.value for p in new.metadata_props}["team"] == "unchanged"
    appended = [n.name for n in new.graph.node if n.name not in {m.name for m in old.graph.node}]
    assert all(name.startswith("tna_onnx/") for name in appended)
    assert bool(appended) == (not report.folded and report.map != "none")
    assert [p.name for p in tmp_path.iterdir()] == ["o.onnx"]


def test_the_same_run_writes_the_same_bytes_and_another_seed_others(small: Small, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        settings = {"eval": small.test, "output": tmp_path / name, "seed": seed, **WALKED}
        with_options(tna_onnx.calibrate, small.model, small.calib, **settings)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_a_file_that_does_not_verify_is_not_written(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tna_onnx.pipeline import record

    real = record.rewrite
    monkeypatch.setattr(record, "rewrite", lambda model, head, weight, **rest: real(model, head, weight * 1.01, **rest))
    with pytest.raises(tna_onnx.CheckFailed, match="verification: the written file gives sample"):
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", **PLAIN)
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_the_input_only_when_asked(small: Small, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(small.model.read_bytes())
    with pytest.raises(tna_onnx.UsageError, match="output is the input model"):
        tna_onnx.calibrate(model, small.calib, output=model, **PLAIN)
    assert model.read_bytes() == small.model.read_bytes()
    tna_onnx.calibrate(model, small.calib, output=model, overwrite=True, **PLAIN)
    assert tna_onnx.inspect(model).provenance["source_sha256"]


def test_no_output_replaces_what_is_read(small: Small, tmp_path: Path) -> None:
    copy = tmp_path / "copy.npz"
    copy.write_bytes(small.test.read_bytes())
    words: dict[str, Any] = {"output": copy, "overwrite": True}
    with pytest.raises(tna_onnx.UsageError, match="copy"):
        with_options(tna_onnx.shift, small.model, small.calib, copy, **words)
    with pytest.raises(tna_onnx.UsageError, match="copy"):
        with_options(tna_onnx.guard, small.model, small.calib, ood_data=copy, add=("ood",), **words)
    assert copy.read_bytes() == small.test.read_bytes()
    copy.write_bytes(small.model.read_bytes())
    with pytest.raises(tna_onnx.UsageError, match="copy"):
        with_options(tna_onnx.calibrate, small.model, small.calib, teacher=copy, **words, **PLAIN)
    assert copy.read_bytes() == small.model.read_bytes()


@pytest.mark.slow
def test_real_models_lose_their_overconfidence_and_keep_their_accuracy(cifar10: Path, tmp_path: Path) -> None:
    recipe = tna_onnx.Recipe(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    for name, map_name, least_ece, most_drop in (
        ("resnet20-wide.onnx", "none", 0.65, 0.3),
        ("resnet20.onnx", "ts", 0.60, 0.5),
    ):
        words: dict[str, Any] = {"map": map_name, "preset": recipe, "device": "cpu", "output": tmp_path / name}
        report = tna_onnx.calibrate(cifar10 / name, cifar10 / "calib", eval=cifar10 / "test", **words)
        before, after = report.comparison.before, report.comparison.after
        assert after.ece < (1 - least_ece) * before.ece
        assert before.accuracy - after.accuracy < most_drop / 100
