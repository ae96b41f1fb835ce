"""`tna-onnx features` and `--cache`: filled alone, taken over, interrupted, resumed, used as data, and refused."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import Small
from tests.corpus.forms import CASES
from tests.support import PLAIN, TILTED, ok, refused, with_options, words_of
from tna_onnx.api.features import features
from tna_onnx.errors import INTERRUPTED, DataError
from tna_onnx.runtime import Session

FAST = words_of(PLAIN)


AGAIN = 3 + 64 + 2 * 64
"""Samples of the first batch that are run again, alone and in another batch, as scores must not depend on that."""


@dataclass
class Count:
    """Samples that went through ONNX Runtime."""

    samples: int = 0


@pytest.fixture
def run_samples(monkeypatch: pytest.MonkeyPatch) -> Count:
    count, compute = Count(), Session._compute

    def counted(self: Session, outputs: Any, feeds: Any) -> Any:
        count.samples += len(next(iter(feeds.values())))
        return compute(self, outputs, feeds)

    monkeypatch.setattr(Session, "_compute", counted)
    return count


def calibrated(model: Any, data: Any, output: Path, **options: Any) -> tna_onnx.Report:
    """Calibrate with plain settings, unless others are given."""
    return with_options(tna_onnx.calibrate, model, data, output=output, **{**PLAIN, **options})


def content(cache: Path) -> dict[str, bytes]:
    return {str(p.relative_to(cache)): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}


def test_the_command_fills_a_store_and_a_fit_takes_it(small: Small, tmp_path: Path) -> None:
    cache, json_file = tmp_path / "cache", tmp_path / "f.json"
    words = ["--data", small.calib, "--cache", cache, "--device", "cpu", "--json", json_file]
    result = ok("features", small.model, *words)
    assert "kept     features 'features' (1500, 32), float32, computed on CPUExecutionProvider" in result.output
    found = json.loads(json_file.read_text())
    folder = Path(found["folder"])
    assert folder.parent == cache
    assert (found["head"], found["tensor"], found["shape"]) == ("head", "features", [1500, 32])
    direct = ok("calibrate", small.model, "--calib", small.calib, "-o", tmp_path / "a.onnx", *FAST)
    for data in (cache, folder):
        result = ok("calibrate", small.model, "--calib", data, "-o", tmp_path / "b.onnx", *FAST)
        assert f"feature store {folder.name} (1,500 samples of 5 classes), cross-fitted" in result.output
        assert weight_of(tmp_path / "a.onnx") == weight_of(tmp_path / "b.onnx")
        assert result.output.split("\n")[3:8] == direct.output.split("\n")[3:8]  # the table


def weight_of(path: Path) -> dict[str, bytes]:
    return {t.name: t.raw_data for t in onnx.load(path).graph.initializer}


def test_calibrate_fills_the_cache_and_takes_it(small: Small, tmp_path: Path, run_samples: Count) -> None:
    cache, seen, reports = tmp_path / "cache", [], []
    for name in ("a", "b"):
        run_samples.samples = 0
        reports.append(calibrated(small.model, small.calib, tmp_path / f"{name}.onnx", cache=cache))
        seen.append(run_samples.samples)
    assert seen[0] - seen[1] == 1500 - 64
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert reports[0].comparison == reports[1].comparison
    run_samples.samples = 0
    features(small.model, small.calib, cache, device="cpu")  # the same store
    assert run_samples.samples == 64 + AGAIN
    assert len(list(cache.iterdir())) == 1


def test_whatever_changes_the_features_makes_another_store(small: Small, tmp_path: Path) -> None:
    samples = dict(np.load(small.calib))
    other_labels = {**samples, "labels": (samples["labels"] + 1) % 5}
    other_data = {**samples, "x": samples["x"] + np.float32(1e-3)}
    proto = onnx.load(small.model)
    helper.set_model_props(proto, {"team": "changed"})
    runs: list[tuple[Any, Any, dict[str, Any]]] = [
        (small.model, samples, {}),
        (small.model, samples, {"batch_size": 32}),
        (small.model, other_labels, {}),
        (small.model, other_data, {}),
        (proto, samples, {}),
    ]
    folders = [with_options(features, m, d, tmp_path, device="cpu", **flags).folder for m, d, flags in runs]
    assert len(set(folders)) == len(folders)
    with pytest.raises(DataError, match=r"expected one feature store, found .*; give the folder of one"):
        calibrated(small.model, tmp_path, tmp_path / "o.onnx")


def test_held_out_data_may_be_a_store_too(small: Small, tmp_path: Path) -> None:
    for name in ("calib", "test"):
        features(small.model, getattr(small, name), tmp_path / name, device="cpu")
    expected = calibrated(small.model, small.calib, tmp_path / "a.onnx", eval=small.test, **TILTED)
    found = calibrated(small.model, tmp_path / "calib", tmp_path / "b.onnx", eval=tmp_path / "test", **TILTED)
    assert expected.angle == found.angle > 0
    assert weight_of(tmp_path / "a.onnx") == weight_of(tmp_path / "b.onnx")
    for before in ("before", "after"):
        a, b = (getattr(report.comparison, before) for report in (expected, found))
        assert (a.n, a.accuracy) == (b.n, b.accuracy)
        assert abs(a.nll - b.nll) < 1e-5  # the files run whole, and from the features on
    with pytest.raises(tna_onnx.DataError, match="are calibration samples too"):
        calibrated(small.model, tmp_path / "calib", tmp_path / "c.onnx", eval=tmp_path / "calib")


def scores(model: Path, samples: dict[str, np.ndarray]) -> np.ndarray:
    """What the model itself gives, (N, C): its first output with classes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, samples)
    return next(o for o in outputs if isinstance(o, np.ndarray) and o.ndim > 1)


# --- stores that do not belong here


@pytest.fixture
def stored(small: Small, tmp_path: Path) -> Path:
    return Path(features(small.model, small.calib, tmp_path / "cache", device="cpu").folder)


def refuse(model: object, folder: object, tmp_path: Path, *flags: object) -> str:
    """Expect exit code 4, as calibration and as held-out data, and nothing written."""
    output = tmp_path / "refused.onnx"
    result = refused(4, "", "calibrate", model, "--calib", folder, "-o", output, *flags, *FAST)
    assert not output.exists()
    return result.output


def two_heads(path: Path) -> Path:
    """x (N, 8) -> Relu -> logits a (N, 5); Relu of that -> logits b (N, 5)."""
    rng = np.random.default_rng(0)
    nodes = nodes_of(
        "MatMul x a0 > h0; Relu h0 > h; MatMul h a1 > a name=head_a; "
        "MatMul h b0 > g0; Relu g0 > g; MatMul g b1 > b name=head_b"
    )
    shapes = {"a0": (8, 8), "a1": (8, 5), "b0": (8, 8), "b1": (8, 5)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = [tensor_info(name, ["N", 5]) for name in ("a", "b")]
    onnx.save(small_model(nodes, {"x": ["N", 8]}, outputs, tensors), path)
    return path


def test_a_store_of_another_head(small: Small, tmp_path: Path) -> None:
    model = two_heads(tmp_path / "two.onnx")
    x = np.load(small.calib)["x"]
    found = scores(model, {"x": x})
    labels = np.argmax(found / 3 + np.random.default_rng(2).gumbel(size=found.shape), axis=1)  # overconfident
    head = tna_onnx.ModelOptions(head="head_a")
    features(model, {"x": x, "labels": labels}, tmp_path / "cache", device="cpu", model_options=head)
    message = refuse(model, tmp_path / "cache", tmp_path, "--head", "head_b")
    assert "of another tensor, 'h', not of 'g'; choose the same --head" in message
    assert calibrated(model, tmp_path / "cache", tmp_path / "o.onnx", head="head_a").head == "head_a"


def test_what_goes_ill_with_a_store(small: Small, stored: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.npy"
    np.save(labels, np.load(stored / "labels.npy")[::-1])
    for flags, message in [
        (["--labels", labels], "has its own labels; leave --labels out"),
        (["--resize", 8], "features are used as they are; leave the preprocessing out"),
        (["--cache", tmp_path / "new"], "computed features or logits already; leave --cache out"),
    ]:
        refused(2, message, "calibrate", small.model, "--calib", stored, "-o", tmp_path / "o.onnx", *flags)
    words = ["features", small.model, "--data", stored, "--cache", tmp_path / "new"]
    refused(2, "holds computed features or logits already", *words)


def test_a_disk_without_room(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space, raising=False)
    for command in (
        ["features", small.model, "--data", small.calib],
        ["calibrate", small.model, "--calib", small.calib, "-o", tmp_path / "o.onnx"],
    ):
        refused(2, "no room for 192,000 bytes of features", *command, "--cache", tmp_path / "cache")
        assert not (tmp_path / "o.onnx").exists()


# --- heads of other forms, and none


BY_NAME = {case.name: case for case in CASES}


def case_data(name: str, folder: Path, n: int = 300) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a model of the corpus; half of the labels are its own predictions."""
    case = BY_NAME[name]
    rng = np.random.default_rng(1)
    model, samples = case.build(folder), case.feeds(n, rng)
    found = scores(model, samples)
    labels = np.where(rng.random(n) < 0.5, found.argmax(1), rng.integers(0, found.shape[1], n))
    return model, {**samples, "labels": labels}


def test_a_head_that_needs_more_of_the_data_than_its_features_is_cached_as_logits(tmp_path: Path) -> None:
    model, data = case_data("form/last token, GatherND", tmp_path)
    expected = calibrated(model, data, tmp_path / "a.onnx", max_accuracy_drop=100)
    for _ in range(2):
        cached = calibrated(model, data, tmp_path / "b.onnx", max_accuracy_drop=100, cache=tmp_path / "cache")
        assert (expected.head, expected.comparison) == ("", cached.comparison)


def test_a_model_without_a_head_keeps_its_logits(tmp_path: Path) -> None:
    model, data = case_data("refused/SVMClassifier", tmp_path)
    cache, kind = tmp_path / "cache", {"output_kind": "logits"}
    # it predicts one class nearly always
    arguments = {**kind, "trust_labels": True}
    expected = calibrated(model, data, tmp_path / "a.onnx", **arguments)
    for _ in range(2):
        found = with_options(features, model, data, cache, device="cpu", **kind)
        assert (found.head, found.tensor, found.shape) == ("", "probabilities", (300, 3))
    cached = calibrated(model, data, tmp_path / "b.onnx", cache=cache, **arguments)
    stored = calibrated(model, cache, tmp_path / "c.onnx", **arguments)
    assert expected.comparison == cached.comparison
    assert abs(expected.comparison.after.nll - stored.comparison.after.nll) < 1e-6
    assert abs(expected.parameters["temperature"] - stored.parameters["temperature"]) < 1e-4  # type: ignore[operator]


# --- interruptions; what signals do to the real program is in tests/faults


def test_an_interrupted_run_goes_on(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: the network stops within its second chunk of 16 batches, of 24; what is left is run, no more."""
    whole, run, calls = tmp_path / "whole", Session.run, Count()
    features(small.model, small.calib, whole, device="cpu")

    def stopping(self: Session, outputs: Any, feeds: Any) -> Any:
        calls.samples += 1
        if calls.samples == 39:
            raise KeyboardInterrupt
        return run(self, outputs, feeds)

    monkeypatch.setattr(Session, "run", stopping)
    words = ["--data", small.calib, "--cache", tmp_path / "cache", "--device", "cpu"]
    refused(INTERRUPTED, "kept in the cache", "features", small.model, *words)
    monkeypatch.undo()
    message = refuse(small.model, tmp_path / "cache", tmp_path)
    assert "not complete: 1,024 of 1,500 samples are there; collect the features again" in message
    found = features(small.model, small.calib, tmp_path / "cache", device="cpu")
    assert found.notes == ()
    assert content(tmp_path / "cache") == content(whole)
