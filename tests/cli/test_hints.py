"""What a model is told to be, and hints: each of them is followed, and has to work."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, stumps, tensor_info
from tests.conftest import Small
from tests.support import cli, ok, refused
from tna_onnx import UsageError, evaluate
from tna_onnx.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 4)).astype(np.float32)
FAST = ["--map", "ts", "--device", "cpu", "--trust-labels"]


def data(folder: Path) -> Path:
    # what the models below go by, with noise
    labels = np.digitize(X[:, 0] + np.random.default_rng(1).standard_normal(150), [-0.7, 0.7])
    np.savez(folder / "calib.npz", X=X, labels=labels)
    return folder / "calib.npz"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["m.onnx", "c.npz", "--method", "ts"], "--map ts"),
        (["m.onnx", "c.npz", "heldout.npz"], "--eval"),
        (["mdoel.onnx", "c.npz"], "did you mean model.onnx"),
        (["https://example.com/model.onnx", "c.npz"], "https://example.com/model.onnx: is a URL"),
        (["hub", "c.npz"], "optimum-cli export onnx --model hub"),
    ],
)
def test_common_mistakes_are_told_what_to_type(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").touch()
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/model.safetensors").touch()
    result = cli("calibrate", *words)
    assert result.exit_code == 2
    assert told in result.stderr


def linear(columns: int, *names: str) -> onnx.ModelProto:
    weight = np.zeros((4, columns), np.float32)
    weight[0] = np.linspace(-2, 2, columns)
    weights = {f"w_{name}": weight + np.float32(0.1 * place) * RNG.standard_normal((4, columns)).astype(np.float32)
               for place, name in enumerate(names)}  # fmt: skip
    nodes = nodes_of("; ".join(f"MatMul X w_{name} > {name} name=head_{name}" for name in names))
    return small_model(nodes, {"X": ["N", 4]}, [tensor_info(n, ["N", columns]) for n in names], weights)


def tree(shares: bool) -> onnx.ModelProto:
    """A stump on X[0]: shares of three classes in its leaves, or scores."""
    scores = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
    leaves = stumps(scores if shares else 5 * scores - 2)
    made = ["label", "scores"]
    node = helper.make_node("TreeEnsembleClassifier", ["X"], made, domain="ai.onnx.ml", **leaves)
    outputs = {"label": (["N"], np.int64), "scores": ["N", 3]}
    return small_model([node], {"X": ["N", 4]}, outputs, domains={"ai.onnx.ml": 3})


def unequal(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make one leaf of a tree give less than the others."""
    next(a for a in model.graph.node[0].attribute if a.name == "class_weights").floats[0] = 0.5
    return model


def regressor() -> onnx.ModelProto:
    node = helper.make_node("LinearRegressor", ["X"], ["y"], domain="ai.onnx.ml", coefficients=[1.0] * 4)
    return small_model([node], {"X": ["N", 4]}, {"y": ["N", 1]}, domains={"ai.onnx.ml": 1})


def detector() -> onnx.ModelProto:
    outputs = {"boxes": ["N", 4], "scores": ["N", 7, 4]}
    return small_model(nodes_of("Identity X > boxes; Softmax X > scores"), {"X": ["N", 4]}, outputs)


def embedding() -> onnx.ModelProto:
    nodes = nodes_of("MatMul X w > raw name=head_y; LpNormalization raw > embedding")
    weight = RNG.standard_normal((4, 8)).astype(np.float32)
    return small_model(nodes, {"X": ["N", 4]}, {"embedding": ["N", 8]}, {"w": weight})


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


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("boosted trees", ["calibrate"]),
        ("two heads", ["calibrate", "--search", "sparse"]),
        ("boosted trees", ["evaluate"]),
        ("two heads", ["features"]),
    ],
)
def test_every_hint_works(tmp_path: Path, name: str, command: list[str]) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(MODELS[name](), model)
    words: list[object] = [command[0], model, data(tmp_path), "--device", "cpu"]
    if command[0] == "calibrate":
        words += [*FAST, "-o", tmp_path / "o.onnx", "--ensemble-size", "inf"]
    if command[0] == "features":
        words += ["--cache", tmp_path / "cache"]
    words += command[1:]
    error = refused(3, "", *words).stderr
    commands = follow(words, error)
    assert commands, error
    for told in commands:
        done = cli(*told)
        # the wrong one of two kinds may be told by the values
        assert done.exit_code == 0 or "probabilities" in done.stderr, (told, done.output)
    assert any(cli(*told).exit_code == 0 for told in commands)


def test_boxes_beside_scores_are_a_detector(tmp_path: Path) -> None:
    """As YOLO writes them: (N, 4 + C, A), the boxes times the stride, and a sigmoid for each class."""
    nodes = nodes_of(
        "Conv X w > all; Reshape all shape > flat; Split flat sizes > box cls axis=1; Mul box stride > boxes; "
        "Sigmoid cls > scores; Concat boxes scores > output0 axis=1"
    )
    tensors = {
        "w": RNG.standard_normal((7, 3, 1, 1)).astype(np.float32), "shape": np.array([0, 7, 20]),
        "sizes": np.array([4, 3]), "stride": np.float32(8),
    }  # fmt: skip
    model = small_model(nodes, {"X": ["N", 3, 4, 5]}, {"output0": ["N", 7, 20]}, tensors)
    onnx.save(model, tmp_path / "yolo.onnx")
    done = cli("inspect", tmp_path / "yolo.onnx")
    assert "detector" in done.output
    assert "classes" not in done.output.replace("classes with confidences", "")


def test_rows_that_are_no_distributions_are_not_taken_for_probabilities(tmp_path: Path) -> None:
    onnx.save(unequal(tree(shares=True)), tmp_path / "model.onnx")
    for command in ("evaluate", "calibrate"):
        refused(3, "the graph does not tell what they are", command, tmp_path / "model.onnx", data(tmp_path))
    assert not (tmp_path / "model.tna.onnx").exists()


@pytest.mark.parametrize(
    ("make", "what", "flags"),
    [
        (regressor, "this is a regressor (LinearRegressor)", ["--search", "sparse"]),
        (detector, "this is a detector (output 'boxes')", ["--search", "none"]),
        (embedding, "this is an embedding model (LpNormalization)", ["--head", "head_y"]),
    ],
)
def test_other_models_are_told_what_they_are_and_get_no_hint(
    tmp_path: Path, make: Any, what: str, flags: list[str]
) -> None:
    onnx.save(make(), tmp_path / "model.onnx")
    result = refused(3, "", "calibrate", tmp_path / "model.onnx", data(tmp_path), "--map", "ts", *flags)
    assert "--search none" not in result.stderr
    assert "--output-kind" not in result.stderr
    if "--head" not in flags:
        assert what in result.stderr


def test_one_number_may_be_a_logit(tmp_path: Path) -> None:
    onnx.save(linear(1, "a"), tmp_path / "model.onnx")
    labels = X[:, 0] + np.random.default_rng(1).standard_normal(150) < 0
    np.savez(tmp_path / "two.npz", X=X, labels=labels.astype(np.int64))
    words = ["calibrate", tmp_path / "model.onnx", tmp_path / "two.npz", *FAST, "-o", tmp_path / "o.onnx"]
    refused(3, "--output-kind logit", *words)
    ok(*words, "--output-kind", "logit")


@pytest.mark.parametrize(
    ("flags", "hint", "followed"),
    [
        (["--map", "platt"], "use --map bias, svs or sms", [["--map", name] for name in ("bias", "svs", "sms")]),
        (["--search", "sparse", "--predictions", "keep"], "leave one of the two out", [["--predictions", "keep"]]),
        (["--search", "none", "--map", "none"], "fit one temperature: --map ts", [["--search", "none", "--map", "ts"]]),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], hint: str, followed: list[list[str]]) -> None:
    onnx.save(linear(3, "a"), tmp_path / "model.onnx")
    words = ["calibrate", tmp_path / "model.onnx", data(tmp_path), "-o", tmp_path / "o.onnx"]
    words += ["--ensemble-size", "inf", "--device", "cpu", "--require", "nothing"]
    error = cli(*words, *flags)
    assert error.exit_code in (2, 3), error.output
    assert hint in error.stderr
    for told in followed:
        ok(*words, *told)


# --- What people try first, also with a folder of the Hub: where it cannot work, the message names what was meant


ROWS = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
LABELS = np.arange(40) % 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder with a model of two numbers, and a table of two columns and one of text."""
    # a draw with which the labels, that follow nothing, go a little: a temperature can be fitted
    weight = np.random.default_rng(6).standard_normal((2, 3)).astype(np.float32)
    nodes = nodes_of("MatMul X weight > logits name=head")
    model = small_model(nodes, {"X": ["N", 2]}, {"logits": ["N", 3]}, {"weight": weight})
    onnx.save(model, tmp_path / "model.onnx")
    names = ("cat", "dog", "emu")
    lines = [f"{a},{b},{names[label]}" for (a, b), label in zip(ROWS, LABELS, strict=True)]
    (tmp_path / "calib.csv").write_text("\n".join(["age,height,species", *lines]) + "\n", "utf-8")
    return tmp_path


def refusal(folder: Path, data: str, *flags: object, model: str = "model.onnx") -> str:
    result = cli("evaluate", folder / model, folder / data, *flags)
    assert result.exit_code != 0, result.output
    return result.stderr


def test_the_only_column_of_text_is_proposed_and_is_the_right_one(table: Path) -> None:
    error = refusal(table, "calib.csv")
    assert "('species', 'age', 'height'); 'species' alone holds the model's classes" in error
    assert "add --label-column species" in error
    ok("evaluate", table / "model.onnx", table / "calib.csv", "--label-column", "species")


def test_model_and_data_in_the_other_order(table: Path) -> None:
    assert "The model comes first, the data behind it" in refusal(table, "model.onnx", model="calib.csv")
    (table / "model.pt").write_bytes(b"PK\x03\x04 no model")
    assert "export the model to ONNX first" in refusal(table, "calib.csv", model="model.pt")


def test_objects_of_python(table: Path) -> None:
    with pytest.raises(UsageError, match=r"as a tuple, \(X, y\)"):
        evaluate(table / "model.onnx", [ROWS, LABELS])
    with pytest.raises(UsageError, match=r"export it to ONNX first \(torch.onnx.export, skl2onnx.to_onnx\)"):
        evaluate(object(), (ROWS, LABELS))  # type: ignore[arg-type]


def test_columns_that_are_neither_inputs_nor_labels_are_dropped(table: Path) -> None:
    text = (table / "calib.csv").read_text("utf-8").splitlines()
    rows = [f"{number or 'customer'},{line}" for number, line in enumerate(text)]
    (table / "calib.csv").write_text("\n".join(rows) + "\n", "utf-8")
    label = ("--label-column", "species")
    assert "takes 2 columns of numbers, the table has 3" in refusal(table, "calib.csv", *label)
    assert "no column 'client', which --drop-columns names" in refusal(
        table, "calib.csv", *label, "--drop-columns", "client"
    )
    dropped = ok("evaluate", table / "model.onnx", table / "calib.csv", *label, "--drop-columns", "customer")
    assert "'age', 'height'" in dropped.output


def test_errors_of_functions_name_arguments(table: Path) -> None:
    for function in (tna_onnx.evaluate, tna_onnx.calibrate):
        with pytest.raises(tna_onnx.DataError, match="add label_column='species'"):
            function(table / "model.onnx", table / "calib.csv")
        assert pickle.loads(pickle.dumps(function)) is function
    assert "--label-column" in refusal(table, "calib.csv")


# ---- A folder as the Hub keeps it: the model in it, what the classes are called, how images become inputs


@pytest.mark.parametrize("place", ["", "onnx"])
def test_the_folder_of_a_model_is_the_model(small: Small, place: str, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / place).mkdir(parents=True)
    shutil.copy(small.model, hub / place / "model.onnx")
    names = ["ant", "bee", "cat", "dog", "eel"]
    (hub / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names)), "model_type": "x"}))
    done = ok("calibrate", hub, small.calib, "--search", "none", "--map", "ts", "--device", "cpu")
    assert (hub / place / "model.tna.onnx").is_file()
    assert f"the classes are named by {hub / 'config.json'}" in " ".join(done.output.split())
    report = tna_onnx.calibrate(hub, small.calib, output=tmp_path / "n.onnx", search="none", map="ts", device="cpu")
    assert [each.name for each in report.recall.classes] == names


def test_text_is_tokenised_by_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    hub = tmp_path / "hub"
    (hub / "onnx").mkdir(parents=True)
    words = ["good", "bad", "film", "a", "not"]
    model = tokenizers.models.WordLevel({word: k for k, word in enumerate([*words, "[UNK]"])}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(hub / "tokenizer.json"))
    rng = np.random.default_rng(0)
    table = {"table": rng.standard_normal((6, 4)).astype(np.float32), "w": 3 * np.eye(4, 2, dtype=np.float32)}
    nodes = nodes_of("Gather table input_ids > e; ReduceMean e > z axes=[1] keepdims=0; MatMul z w > logits name=head")
    proto = small_model(nodes, {"input_ids": (["N", 4], np.int64)}, {"logits": ["N", 2]}, table)
    onnx.save(proto, hub / "onnx/model.onnx")
    ids = rng.integers(0, 5, (300, 4))
    logits = table["table"][ids].mean(axis=1) @ table["w"]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1).tolist()
    texts = [" ".join(words[k] for k in row) for row in ids.tolist()]
    data = tmp_path / "d.jsonl"
    data.write_text("\n".join(json.dumps({"text": t, "label": y}) for t, y in zip(texts, labels, strict=True)))
    stated = tna_onnx.evaluate(hub, tna_onnx.Data(data, tokenizer=hub), device="cpu")
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
