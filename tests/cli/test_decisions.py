"""Decisions in other commands: `calibrate --add`; what `evaluate`, `compare` and `verify` say of guarded files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from scipy.special import softmax

from tests.conftest import Demo, Small
from tests.data.samples import open_source
from tests.guarding.conftest import run
from tests.pipeline.samples import few
from tests.results.test_json import valid
from tests.support import loaded, ok, refused
from tna_onnx.data.source import InputSpec, halves
from tna_onnx.numerics.conformal import coverage_band

FAST = ["--search", "none", "--map", "isotonic", "--device", "cpu"]
ALL = ["--add", "confidence,accept,set,ood", "--risk", "20", "--coverage", "90"]


@pytest.fixture(scope="module")
def both(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A file that is recalibrated and guarded at once, its report, and its page."""
    folder = tmp_path_factory.mktemp("both")
    words = ["--eval", small.test, "-o", folder / "m.onnx", "--json", folder / "m.json", "--report", folder / "m.html"]
    done = ok("calibrate", small.model, "--calib", small.calib, *FAST, *ALL, *words)
    (folder / "m.txt").write_text(done.output)
    # nothing but the results: the file in between is gone
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "m.json", "m.html", "m.txt"}
    return folder / "m.onnx", valid((folder / "m.json").read_text())


def test_one_file_is_recalibrated_and_decides(small: Small, both: tuple[Path, dict[str, Any]]) -> None:
    path, report = both
    test = loaded(small.test)
    found = run(path, test["x"])
    before = run(small.model, test["x"])["logits"]
    assert np.abs(found["logits"] - before).max() > 0.1
    p = softmax(found["logits"].astype(np.float64), axis=1)
    np.testing.assert_allclose(p.max(axis=1), found["confidence"], rtol=1e-5)
    shown = report["guard"]["decisions"]
    assert shown["fresh"] is True
    assert shown["coverage"] == pytest.approx(found["set"][np.arange(1500), test["labels"]].mean())
    low, high = coverage_band(750, 0.9, 1500, 0.999)
    assert low <= shown["coverage"] <= high
    assert shown["risk"] <= 0.2
    assert report["output"] == str(path)
    assert report["guard"]["output"] == str(path)
    assert report["guard"]["model"] == report["model"] == str(small.model)


def test_thresholds_come_from_samples_that_no_fit_has_seen(small: Small, both: tuple[Path, dict[str, Any]]) -> None:
    path, report = both
    entries = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert entries["tna_onnx.calibration_samples"] == entries["tna_onnx.guard_samples"] == "750"
    assert entries["tna_onnx.calibration_sha256"] != entries["tna_onnx.guard_data_sha256"]
    assert any("750 of the 1,500 samples fit weight and map, the other 750" in note for note in report["notes"])
    source = open_source(small.calib, [InputSpec("x", (None, 8), np.dtype(np.float32))], 5)
    fit, decide = halves(source, 0, ("a", "b"))
    assert {*fit.rows.tolist()} | {*decide.rows.tolist()} == {*range(1500)}
    # the set's threshold is that of the other half, to the last bit
    calib = loaded(small.calib)
    (limit,) = next(each["threshold"] for each in report["guard"]["outputs"] if each["role"] == "set")
    p = softmax(run(path, calib["x"][decide.rows])["logits"].astype(np.float64), axis=1)
    own = np.sort(1 - p[np.arange(750), calib["labels"][decide.rows]])
    assert own[int(np.ceil(751 * 0.9)) - 1] == pytest.approx(limit, abs=1e-5)


def test_copies_stay_on_one_side() -> None:
    x = np.repeat(np.arange(30, dtype=np.float32), 4)[:, None]
    source = open_source({"x": x, "labels": np.arange(120) % 2}, [InputSpec("x", (None, 1), np.dtype(np.float32))], 2)
    fit, decide = halves(source, 1, ("a", "b"))
    assert not {*x[fit.rows, 0].tolist()} & {*x[decide.rows, 0].tolist()}
    assert len(fit) + len(decide) == 120
    assert fit.digest() != decide.digest() != source.digest()
    (batch,) = decide.batches(1000)
    np.testing.assert_array_equal(batch["x"], x[decide.rows])
    (some,) = decide.batches(2, np.array([1, 0]))
    np.testing.assert_array_equal(some["x"], x[decide.rows[[1, 0]]])


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--coverage", "90"], 2, "coverage applies to decisions, and none is added; add one with --add"),
        (["--add", "set", "--coverage", "99.9"], 4, "need 999 samples, and there are 750"),
    ],
)
def test_what_cannot_be_added(small: Small, flags: list[str], code: int, said: str, tmp_path: Path) -> None:
    words = ["--calib", small.calib, *FAST, *flags, "-o", tmp_path / "m.onnx", "-q"]
    # messages name the file that was to be written, and no temporary one
    assert ".tmp" not in refused(code, said, "calibrate", small.model, *words).output
    assert list(tmp_path.iterdir()) == []


def test_features_are_refused(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", features=np.ones((60, 32), np.float32), labels=np.arange(60) % 5)
    words = ["--calib", tmp_path / "f.npz", *FAST, "--add", "set", "-q"]
    refused(2, "needs samples for its inputs", "calibrate", small.model, *words)


def test_evaluate_and_compare_measure_decisions(
    small: Small, both: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, report = both
    words = ["--data", small.test]
    ok("evaluate", path, *words, "--json", tmp_path / "e.json")
    shown = valid((tmp_path / "e.json").read_text())["decisions"]
    expected = report["guard"]["decisions"]
    for name in ("coverage", "accepted", "risk", "mean_set_size", "alarms", "class_coverage", "class_set_size"):
        assert shown[name] == pytest.approx(expected[name])
    assert shown["fresh"] is True
    pages = ["--json", tmp_path / "c.json", "--report", tmp_path / "c.html"]
    done = ok("compare", small.model, path, *words, *pages)
    first, second = valid((tmp_path / "c.json").read_text())["models"]
    assert first["decisions"] is None
    assert second["decisions"]["coverage"] == shown["coverage"]
    assert "What the file decides" in (tmp_path / "c.html").read_text()
    assert "decisions of m.onnx" in done.output


@pytest.mark.parametrize("model", ["plain", "lying", "damaged"])
def test_models_that_decide_nothing(small: Small, model: str, tmp_path: Path) -> None:
    """A file may say that it is guarded and have other outputs, or none, of these names."""
    proto = onnx.load(small.model)
    if model == "lying":
        proto.metadata_props.add(key="tna_onnx.guard", value=json.dumps({"prefix": ""}))
        proto.graph.node.append(helper.make_node("Identity", ["logits"], ["set"]))
        proto.graph.output.append(helper.make_tensor_value_info("set", 1, ["N", 5]))
    if model == "damaged":
        proto.metadata_props.add(key="tna_onnx.guard", value='["prefix"]')
    onnx.save(proto, tmp_path / "m.onnx")
    words = ["--data", small.test, "--output-name", "logits"]
    ok("evaluate", tmp_path / "m.onnx", *words, "--json", tmp_path / "e.json")
    assert valid((tmp_path / "e.json").read_text())["decisions"] is None


def test_few_samples_cannot_be_told_from_those_of_the_thresholds(small: Small, tmp_path: Path) -> None:
    """A file keeps some digests: of two samples, none or one can be looked up."""
    words = ["--calib", small.calib, "--add", "confidence,set", "-o", tmp_path / "g.onnx", "-q"]
    ok("guard", small.model, *words)
    for data in (small.calib, small.test):
        np.savez(tmp_path / "two.npz", **few(data, 2))
        words = ["--bins", 2, "--data", tmp_path / "two.npz", "--json", tmp_path / "e.json"]
        done = ok("evaluate", tmp_path / "g.onnx", *words)
        assert valid((tmp_path / "e.json").read_text())["decisions"]["fresh"] is None
        assert "held-out" not in done.output


def test_unknown_samples_are_told_from_known_ones(small: Small, tmp_path: Path) -> None:
    far = 20 * np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    np.savez(tmp_path / "far.npz", x=far, labels=np.arange(200) % 50)
    words = ["--eval", small.test, "--add", "ood", "--ood-data", tmp_path / "far.npz", "--json", tmp_path / "g.json"]
    done = ok("guard", small.model, small.calib, *words, "-o", tmp_path / "g.onnx")
    assert "measured unknown samples" in done.output
    shown = valid((tmp_path / "g.json").read_text())["decisions"]["detection"]
    found, known = run(tmp_path / "g.onnx", far), run(tmp_path / "g.onnx", loaded(small.test)["x"])["ood"]
    assert shown["detected"] == pytest.approx(found["ood_alarm"].mean())
    above = np.mean(found["ood"][:, None] > known[None]) + 0.5 * np.mean(found["ood"][:, None] == known[None])
    assert shown["auroc"] == pytest.approx(above)


def test_unknown_images_beside_arrays(demo: Demo, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "far").mkdir()
    image.new("L", (28, 28)).save(tmp_path / "far/a.png")
    words = ["--add", "ood", "--ood-data", tmp_path / "far", "-o", tmp_path / "g.onnx"]
    refused(2, "use arrays or images for both", "guard", demo.model, demo.calib, *words)
