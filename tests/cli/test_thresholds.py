"""One sigmoid and several labels: probabilities come first, and the stated threshold keeps every decision of today."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from scipy.special import expit

from tests.builders import nodes_of, small_model
from tests.support import ok, refused

N_FEATURES = 12


def detector(path: Path, columns: int, *, softmax: bool = False) -> np.ndarray:
    """Write a linear model with a sigmoid for each column, or with a softmax over two; return its weight."""
    weight = np.random.default_rng(5).normal(size=(N_FEATURES, columns)).astype(np.float32)
    stored = np.concatenate([np.zeros_like(weight), weight], axis=1) if softmax else weight
    nodes = nodes_of(f"Gemm x w b > z; {'Softmax' if softmax else 'Sigmoid'} z > p")
    tensors = {"w": stored, "b": np.zeros(stored.shape[1], np.float32)}
    onnx.save(small_model(nodes, {"x": ["N", N_FEATURES]}, {"p": ["N", stored.shape[1]]}, tensors), path)
    return weight


def samples(path: Path, weight: np.ndarray, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Write samples whose positives are far rarer than the model says."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, N_FEATURES)).astype(np.float32)
    labels = (rng.random((n, weight.shape[1])) < expit(0.7 * x @ weight - 2.5)).astype(np.int64)
    np.savez(path, x=x, labels=labels[:, 0] if weight.shape[1] == 1 else labels)
    return x, labels


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort.InferenceSession(path).run(None, {"x": x})[0], np.float64)


@pytest.mark.parametrize("columns", [1, 3])
def test_the_stated_threshold_keeps_every_decision(tmp_path: Path, columns: int) -> None:
    weight = detector(tmp_path / "m.onnx", columns)
    samples(tmp_path / "c.npz", weight, 1500, 1)
    kind = [] if columns == 1 else ["--output-kind", "label-probabilities"]
    words = ["calibrate", tmp_path / "m.onnx", tmp_path / "c.npz", *kind]
    files = ["-o", tmp_path / "o.onnx", "--json", tmp_path / "r.json", "--report", tmp_path / "r.html"]
    out = ok(*words, *files).stdout
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    kept = report["kept_decisions"]
    assert len(kept) == columns
    x, labels = samples(tmp_path / "new.npz", weight, 4000, 2)
    old, new = (outputs(tmp_path / name, x) for name in ("m.onnx", "o.onnx"))
    for c, decision in enumerate(kept):
        assert np.array_equal(new[:, c] > decision["threshold"], old[:, c] > 0.5)
        assert 0 < decision["threshold"] < 0.4
        # four standard errors of a frequency of 4,000 samples
        assert abs(new[:, c].mean() - labels[:, c].mean()) < 4 * np.sqrt(0.25 / 4000)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert all(repr(decision["threshold"]) in text for decision in kept for text in (out, page))
    assert report["comparison"]["after"]["positive"]["ece"] < report["comparison"]["before"]["positive"]["ece"]


def test_keep_keeps_decisions_at_one_half(tmp_path: Path) -> None:
    weight = detector(tmp_path / "m.onnx", 1)
    x, _ = samples(tmp_path / "c.npz", weight, 1500, 1)
    words = ["calibrate", tmp_path / "m.onnx", tmp_path / "c.npz", "--predictions", "keep"]
    ok(*words, "-o", tmp_path / "o.onnx", "--json", tmp_path / "r.json")
    old, new = (outputs(tmp_path / name, x) for name in ("m.onnx", "o.onnx"))
    assert np.array_equal(new > 0.5, old > 0.5)
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert report["kept_decisions"] == []
    assert "improved" not in report["verdict"]


@pytest.mark.slow
def test_two_classes_by_argmax_are_never_called_improved_while_they_are_off(tmp_path: Path) -> None:
    weight = detector(tmp_path / "m.onnx", 1, softmax=True)
    x, labels = samples(tmp_path / "c.npz", weight, 1500, 1)
    words = ["calibrate", tmp_path / "m.onnx", tmp_path / "c.npz", "--json", tmp_path / "r.json"]
    out = ok(*words, "-o", tmp_path / "o.onnx").stdout
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    off = report["comparison"]["after"]["positive"]["p"] < 0.05
    assert off == out.startswith("P(1) is ")
    if off:
        assert "--predictions change" in out
        assert "improved" not in report["verdict"]
        assert "needs no recalibration" not in out
    gate = ("--require", "improvement")
    refused(1, " ".join(gate), *words, *gate, "-o", tmp_path / "kept.onnx", "--predictions", "keep")
    words += [*gate, "--predictions", "change"]
    ok(*words, "-o", tmp_path / "free.onnx", "--report", tmp_path / "r.html")
    # the picture that everyone expects
    assert "Bars of frequency per bin of P(1)" in (tmp_path / "r.html").read_text("utf-8")
    free = outputs(tmp_path / "free.onnx", x)[:, 1]
    assert abs(free.mean() - labels.mean()) < 0.01


def test_positive_names_the_class_of_every_table(tmp_path: Path) -> None:
    weight = detector(tmp_path / "m.onnx", 1, softmax=True)
    samples(tmp_path / "c.npz", weight, 600, 1)
    found: dict[str, list[dict]] = {}
    for word in ("", "0"):
        more = ["--positive", word] if word else []
        models = [tmp_path / "m.onnx", tmp_path / "m.onnx"]
        for command, files in (("calibrate", models[:1]), ("evaluate", models[:1]), ("compare", models)):
            where = tmp_path / f"{command}.json"
            written = (
                ["--map", "platt", "--search", "none", "-o", tmp_path / "o.onnx"] if command == "calibrate" else []
            )
            ok(command, *files, tmp_path / "c.npz", *written, "--json", where, *more)
            result = json.loads(where.read_text("utf-8"))
            sides = {
                "calibrate": lambda it: [it["comparison"][side] for side in ("before", "after")],
                "evaluate": lambda it: [it["metrics"]],
                "compare": lambda it: [model["metrics"] for model in it["models"]],
            }[command](result)
            found.setdefault(word, []).extend(side["positive"] for side in sides)
    for second, first in zip(found[""], found["0"], strict=True):
        assert (second["name"], first["name"]) == ("1", "0")
        assert first["mean"] == pytest.approx(1 - second["mean"], abs=1e-6)
        assert first["frequency"] == pytest.approx(1 - second["frequency"])
        assert first["ece"] == pytest.approx(second["ece"], abs=1e-6)
        assert first["intercept"]["value"] == pytest.approx(-second["intercept"]["value"], abs=1e-4)
    detector(tmp_path / "three.onnx", 3)
    samples(tmp_path / "three.npz", np.ones((N_FEATURES, 3)), 100, 1)
    for word, model, data in (("2", "m.onnx", "c.npz"), ("1", "three.onnx", "three.npz")):
        kind = ["--output-kind", "label-probabilities"] if model != "m.onnx" else []
        refused(2, "--positive", "evaluate", tmp_path / model, tmp_path / data, "--positive", word, *kind)


def test_where_no_threshold_keeps_decisions_there_is_none(tmp_path: Path) -> None:
    """An isotonic map of steps is flat around a logit of 0 where the labels do not follow the score there."""
    weight = detector(tmp_path / "m.onnx", 1)
    x, _ = samples(tmp_path / "c.npz", weight, 1500, 1)
    score = (x @ weight)[:, 0]
    labels = (np.random.default_rng(0).random(len(x)) < np.where(score > 3, 0.8, 0.1)).astype(np.int64)
    np.savez(tmp_path / "c.npz", x=x, labels=labels)
    files = ["-o", tmp_path / "o.onnx", "--json", tmp_path / "r.json"]
    out = ok("calibrate", tmp_path / "m.onnx", tmp_path / "c.npz", "--map", "irova", *files).stdout
    (kept,) = json.loads((tmp_path / "r.json").read_text("utf-8"))["kept_decisions"]
    old, new = (outputs(tmp_path / name, x)[:, 0] for name in ("m.onnx", "o.onnx"))
    assert new[old <= 0.5].max() >= new[old > 0.5].min()
    assert kept["threshold"] is None
    assert "No threshold" in out


def test_subgroups_go_by_the_probability_of_the_positive_class(tmp_path: Path) -> None:
    weight = detector(tmp_path / "m.onnx", 1, softmax=True)
    x, labels = samples(tmp_path / "c.npz", weight, 900, 1)
    part = np.where(np.arange(len(x)) % 3, "usual", "sure")
    labels[part == "usual", 0] = np.random.default_rng(0).random(600) < expit(x[part == "usual"] @ weight)[:, 0]
    np.savez(tmp_path / "parts.npz", x=x, labels=labels[:, 0], part=part)
    ok("evaluate", tmp_path / "m.onnx", tmp_path / "parts.npz", "--by", "part", "--json", tmp_path / "r.json")
    found = {one["name"]: one for one in json.loads((tmp_path / "r.json").read_text("utf-8"))["subgroups"]}
    assert [*found] == ["sure", "usual"]
    for name, one in found.items():
        p, y = outputs(tmp_path / "m.onnx", x[part == name])[:, 1], labels[part == name, 0]
        place = np.minimum((p * 15).astype(int), 14)
        assert one["metrics"]["positive"]["ece"] == pytest.approx(
            np.abs(np.bincount(place, y - p)).sum() / len(y), abs=1e-6
        )
        estimate = one["estimates"]["positive.ece"]
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
