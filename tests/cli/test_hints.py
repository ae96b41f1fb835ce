"""What a model is told to be, and hints: each of them is followed, and has to work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model, tensor_info
from tests.support import cli

RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 4)).astype(np.float32)
FAST = ["--map", "ts", "--device", "cpu", "--trust-labels"]


def data(folder: Path) -> Path:
    # what the models below go by, with noise
    labels = np.digitize(X[:, 0] + np.random.default_rng(1).standard_normal(150), [-0.7, 0.7])
    np.savez(folder / "calib.npz", X=X, labels=labels)
    return folder / "calib.npz"


def linear(columns: int, *names: str) -> onnx.ModelProto:
    weight = np.zeros((4, columns), np.float32)
    weight[0] = np.linspace(-2, 2, columns)
    weights = {f"w_{name}": weight + np.float32(0.1 * place) * RNG.standard_normal((4, columns)).astype(np.float32)
               for place, name in enumerate(names)}  # fmt: skip
    nodes = [helper.make_node("MatMul", ["X", f"w_{name}"], [name], name=f"head_{name}") for name in names]
    return small_model(nodes, [tensor_info("X", ["N", 4])], [tensor_info(n, ["N", columns]) for n in names], weights)


def tree(shares: bool) -> onnx.ModelProto:
    """A stump on X[0]: shares of three classes in its leaves, or scores."""
    scores = [0.6, 0.3, 0.1, 0.1, 0.3, 0.6]
    node = helper.make_node(
        "TreeEnsembleClassifier", ["X"], ["label", "scores"], domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_values=[0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0] * 6, class_nodeids=[1, 1, 1, 2, 2, 2], class_ids=[0, 1, 2, 0, 1, 2],
        class_weights=scores if shares else [5 * score - 2 for score in scores], classlabels_int64s=[0, 1, 2],
        post_transform="NONE",
    )  # fmt: skip
    outputs = [tensor_info("label", ["N"], np.int64), tensor_info("scores", ["N", 3])]
    return small_model([node], [tensor_info("X", ["N", 4])], outputs, domains={"ai.onnx.ml": 3})


def unequal(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make one leaf of a tree give less than the others."""
    next(a for a in model.graph.node[0].attribute if a.name == "class_weights").floats[0] = 0.5
    return model


def regressor() -> onnx.ModelProto:
    node = helper.make_node("LinearRegressor", ["X"], ["y"], domain="ai.onnx.ml", coefficients=[1.0] * 4)
    return small_model([node], [tensor_info("X", ["N", 4])], [tensor_info("y", ["N", 1])], domains={"ai.onnx.ml": 1})


def detector() -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["X"], ["boxes"]), helper.make_node("Softmax", ["X"], ["scores"])]
    outputs = [tensor_info("boxes", ["N", 4]), tensor_info("scores", ["N", 7, 4])]
    return small_model(nodes, [tensor_info("X", ["N", 4])], outputs)


def embedding() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["X", "w"], ["raw"], name="head_y"),
        helper.make_node("LpNormalization", ["raw"], ["embedding"]),
    ]
    weight = RNG.standard_normal((4, 8)).astype(np.float32)
    return small_model(nodes, [tensor_info("X", ["N", 4])], [tensor_info("embedding", ["N", 8])], {"w": weight})


MODELS: dict[str, Any] = {"boosted trees": lambda: tree(shares=False), "two heads": lambda: linear(3, "a", "b")}


def follow(words: list[object], error: str) -> list[list[object]]:
    """Return the commands that a message proposes."""
    flags = dict.fromkeys(re.findall(r"(?:--[a-z-]+ (?:none|[a-z]+|NODE|NAME)\b ?)+", error))
    found = []
    for flag in flags:
        node = re.search(r"heads found: (\S+) \(output '(\w+)'", error)
        text = flag
        if node:
            text = text.replace("NODE", node[1]).replace("NAME", node[2])
        found.append([*words, *text.split()])
    return found


@pytest.mark.parametrize("command", [["calibrate"], ["calibrate", "--search", "sparse"], ["evaluate"], ["features"]])
@pytest.mark.parametrize("name", MODELS)
def test_every_hint_works(tmp_path: Path, name: str, command: list[str]) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(MODELS[name](), model)
    words: list[object] = [command[0], model, data(tmp_path), "--device", "cpu"]
    if command[0] == "calibrate":
        words += [*FAST, "-o", tmp_path / "o.onnx", "--ensemble-size", "inf"]
    if command[0] == "features":
        words += ["--cache", tmp_path / "cache"]
    refused = cli(*words, *command[1:])
    assert refused.exit_code == 3, refused.output
    commands = follow([*words, *command[1:]], refused.stderr)
    assert commands, refused.stderr
    for told in commands:
        done = cli(*told)
        # the wrong one of two kinds may be told by the values
        assert done.exit_code == 0 or "probabilities" in done.stderr, (told, done.output)
    assert any(cli(*told).exit_code == 0 for told in commands)


def test_a_forest_of_shares_is_probabilities(tmp_path: Path) -> None:
    onnx.save(tree(shares=True), tmp_path / "model.onnx")
    words = ["--search", "none", "--map", "ts", "-o", tmp_path / "new.onnx", "--trust-labels"]
    done = cli("calibrate", tmp_path / "model.onnx", data(tmp_path), *words)
    assert done.exit_code == 0, done.output
    assert "adds up the shares in the leaves of trees" in done.output


def test_boxes_beside_scores_are_a_detector(tmp_path: Path) -> None:
    """As YOLO writes them: (N, 4 + C, A), the boxes times the stride, and a sigmoid for each class."""
    nodes = [
        helper.make_node("Conv", ["X", "w"], ["all"]),
        helper.make_node("Reshape", ["all", "shape"], ["flat"]),
        helper.make_node("Split", ["flat", "sizes"], ["box", "cls"], axis=1),
        helper.make_node("Mul", ["box", "stride"], ["boxes"]),
        helper.make_node("Sigmoid", ["cls"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["output0"], axis=1),
    ]
    tensors = {
        "w": RNG.standard_normal((7, 3, 1, 1)).astype(np.float32), "shape": np.array([0, 7, 20]),
        "sizes": np.array([4, 3]), "stride": np.float32(8),
    }  # fmt: skip
    model = small_model(nodes, [tensor_info("X", ["N", 3, 4, 5])], [tensor_info("output0", ["N", 7, 20])], tensors)
    onnx.save(model, tmp_path / "yolo.onnx")
    done = cli("inspect", tmp_path / "yolo.onnx")
    assert "detector" in done.output
    assert "classes" not in done.output.replace("classes with confidences", "")


def test_rows_that_are_no_distributions_are_not_taken_for_probabilities(tmp_path: Path) -> None:
    onnx.save(unequal(tree(shares=True)), tmp_path / "model.onnx")
    for command in ("evaluate", "calibrate"):
        refused = cli(command, tmp_path / "model.onnx", data(tmp_path))
        assert refused.exit_code == 3
        assert "the graph does not tell what they are" in refused.stderr
    assert not (tmp_path / "model.tna.onnx").exists()


@pytest.mark.parametrize(
    ("make", "what", "flags"),
    [
        (regressor, "this is a regressor (LinearRegressor)", []),
        (regressor, "this is a regressor (LinearRegressor)", ["--search", "sparse"]),
        (detector, "this is a detector (output 'boxes')", ["--search", "none"]),
        (detector, "this is a detector (output 'boxes')", ["--head", "head_y"]),
        (embedding, "this is an embedding model (LpNormalization)", []),
        (embedding, "this is an embedding model (LpNormalization)", ["--head", "head_y"]),
    ],
)
def test_other_models_are_told_what_they_are_and_get_no_hint(
    tmp_path: Path, make: Any, what: str, flags: list[str]
) -> None:
    onnx.save(make(), tmp_path / "model.onnx")
    result = cli("calibrate", tmp_path / "model.onnx", data(tmp_path), "--map", "ts", *flags)
    assert result.exit_code == 3
    assert "--search none" not in result.stderr
    assert "--output-kind" not in result.stderr
    if "--head" not in flags:
        assert what in result.stderr


def test_one_number_may_be_a_logit(tmp_path: Path) -> None:
    onnx.save(linear(1, "a"), tmp_path / "model.onnx")
    labels = X[:, 0] + np.random.default_rng(1).standard_normal(150) < 0
    np.savez(tmp_path / "two.npz", X=X, labels=labels.astype(np.int64))
    words = ["calibrate", tmp_path / "model.onnx", tmp_path / "two.npz", *FAST, "-o", tmp_path / "o.onnx"]
    refused = cli(*words)
    assert refused.exit_code == 3
    assert "Then say --output-kind logit" in refused.stderr
    assert cli(*words, "--output-kind", "logit").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "hint", "followed"),
    [
        (["--map", "platt"], "use --map bias, svs or sms", [["--map", name] for name in ("bias", "svs", "sms")]),
        (["--map", "bias", "--predictions", "keep"], "use --map ts", [["--map", "ts", "--predictions", "keep"]]),
        (["--search", "sparse", "--predictions", "keep"], "leave one of the two out", [["--predictions", "keep"]]),
        (["--search", "none", "--map", "none"], "fit one temperature: --map ts", [["--search", "none", "--map", "ts"]]),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], hint: str, followed: list[list[str]]) -> None:
    onnx.save(linear(3, "a"), tmp_path / "model.onnx")
    words = ["calibrate", tmp_path / "model.onnx", data(tmp_path), "-o", tmp_path / "o.onnx"]
    words += ["--ensemble-size", "inf", "--device", "cpu", "--no-fail-if-worse"]
    refused = cli(*words, *flags)
    assert refused.exit_code in (2, 3), refused.output
    assert hint in refused.stderr
    for told in followed:
        done = cli(*words, *told)
        assert done.exit_code == 0, (told, done.output)
