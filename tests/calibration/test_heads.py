"""Several heads of one model: each as if it were alone, all in one file, and what stands in the way."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import weakref
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tests.support import PLAIN, TILTED, cli
from tna_onnx.calibration import network, turn
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.numerics.ops import softmax
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.heads import HeadReports

CLASSES = {"colour": 5, "shape": 3}
Model = tuple[Path, Path, Path]


def _draw(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _tensors(tied: bool) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(11)
    tensors: dict[str, NDArray[Any]] = {"trunk": _draw(rng, 8, 24)}
    for name, classes in CLASSES.items():
        tensors[f"{name}_weight"] = _draw(rng, classes, 24)
        tensors[f"{name}_bias"] = _draw(rng, classes)
    if tied:
        tensors["shape_weight"] = tensors["colour_weight"]
        tensors["shape_bias"] = tensors["colour_bias"]
    return tensors


def _proto(how: str) -> onnx.ModelProto:
    """A trunk and two heads. `how`: plain, neck (shape has features of its own), tied, reads (shape reads colour)."""
    tensors = _tensors(how == "tied")
    classes = {**CLASSES, "shape": 5} if how == "tied" else CLASSES
    features = {"colour": "features", "shape": "features"}
    nodes = [
        helper.make_node("MatMul", ["x", "trunk"], ["h"], name="trunk"),
        helper.make_node("Relu", ["h"], ["features"], name="relu"),
    ]
    if how in ("neck", "tied"):
        nodes.append(helper.make_node("Tanh", ["h"], ["neck"], name="tanh"))
        features["shape"] = "neck"
    stored = {name: name for name in CLASSES}
    if how == "tied":
        tensors = {name: value for name, value in tensors.items() if not name.startswith("shape")}
        stored["shape"] = "colour"
    if how == "reads":
        tensors["shape_weight"] = np.concatenate([tensors["shape_weight"], np.ones((3, 5), np.float32)], axis=1)
    for name in CLASSES:
        if how == "reads" and name == "shape":
            nodes.append(helper.make_node("Concat", ["features", "colour"], ["both"], name="both", axis=1))
            features["shape"] = "both"
        inputs = [features[name], f"{stored[name]}_weight", f"{stored[name]}_bias"]
        nodes.append(helper.make_node("Gemm", inputs, [name], name=f"{name}_head", transB=1))
    outputs = [tensor_info(name, ["N", classes[name]]) for name in CLASSES]
    return small_model(nodes, [tensor_info("x", ["N", 8])], outputs, tensors)


def _run(path: Path | bytes, x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip(CLASSES, session.run(list(CLASSES), {"x": x}), strict=True))


def _labelled(proto: onnx.ModelProto, seed: int, n: int = 600) -> dict[str, NDArray[Any]]:
    """Labels from each head's softmax at a temperature of 3, so that both are overconfident."""
    rng = np.random.default_rng(seed)
    x = _draw(rng, n, 8)
    logits = _run(proto.SerializeToString(), x)
    drawn = {name: np.argmax(z / 3 + rng.gumbel(size=z.shape), axis=1) for name, z in logits.items()}
    return {"x": x, **drawn}


def _made(folder: Path, how: str) -> Model:
    proto = _proto(how)
    onnx.save(proto, folder / "m.onnx")
    for name, seed in (("calib", 1), ("test", 2)):
        np.savez(folder / f"{name}.npz", **_labelled(proto, seed))
    return folder / "m.onnx", folder / "calib.npz", folder / "test.npz"


@pytest.fixture
def two(tmp_path: Path) -> Model:
    return _made(tmp_path, "plain")


def _nll(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    return float(-np.mean(np.log(softmax(logits.astype(np.float64))[np.arange(len(labels)), labels])))


@pytest.mark.parametrize(
    "settings",
    [
        PLAIN,
        pytest.param({**PLAIN, "map": "ets"}, marks=pytest.mark.slow),
        pytest.param({**PLAIN, "map": "irova"}, marks=pytest.mark.slow),
        pytest.param({**PLAIN, "map": "aar"}, marks=pytest.mark.slow),
        pytest.param({**TILTED, "map": "ets"}, marks=pytest.mark.slow),
        pytest.param({**PLAIN, "fold": False}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("how", ["plain", "neck", "tied"])
def test_each_head_is_what_it_would_be_alone(tmp_path: Path, how: str, settings: dict[str, Any]) -> None:
    """The oracle is `calibrate` on one head, and ONNX Runtime on both files."""
    model, calib, test = _made(tmp_path, how)
    out = tmp_path / "out.onnx"
    result = tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], eval=test, output=out, **settings)
    data = np.load(test)
    together = _run(out, data["x"])
    for name in CLASSES:
        alone = tmp_path / f"{name}.onnx"
        tna_onnx.calibrate(
            model, calib, eval=test, output=alone, head=name, label_column=name, **settings
        )  # fmt: skip
        np.testing.assert_allclose(together[name], _run(alone, data["x"])[name], rtol=1e-5, atol=1e-5)
        report = result.heads[name]
        nll = _nll(together[name], data[name])
        assert report.comparison.after.nll == pytest.approx(nll, rel=1e-6)
        assert report.comparison.after.nll < report.comparison.before.nll
        seen = tna_onnx.evaluate(out, test, head=name, label_column=name)
        assert seen.metrics.nll == pytest.approx(nll, rel=1e-6)
        assert tna_onnx.verify(model, out, head=name, data=test, label_column=name).passed
    assert tna_onnx.verify(model, out).passed
    both = tna_onnx.compare([model, out], test, head="shape", label_column="shape")
    assert both.models[1].metrics.nll < both.models[0].metrics.nll
    onnx.checker.check_model(onnx.load(out))


def test_a_foreign_change_beside_two_heads_is_seen(two: Model, tmp_path: Path) -> None:
    """What explains the heads explains nothing else."""
    model, calib, _ = two
    settings = {**PLAIN, "map": "ets"}
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "out.onnx", **settings)
    proto = onnx.load(tmp_path / "out.onnx")
    trunk = next(tensor for tensor in proto.graph.initializer if tensor.name == "trunk")
    changed = onnx.numpy_helper.to_array(trunk).copy()
    changed[0, 0] += 1
    trunk.CopyFrom(onnx.numpy_helper.from_array(changed, "trunk"))
    found = tna_onnx.verify(model, proto)
    assert [(d.part, d.name) for d in found.differences if not d.explained] == [("tensor", "trunk")]


@pytest.mark.parametrize(("how", "runs"), [("plain", 2), ("neck", 4)])
def test_heads_with_the_same_features_share_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, runs: int
) -> None:
    """Once over each of two data sets; twice where the features differ."""
    model, calib, test = _made(tmp_path, how)
    collected = []
    original = network.collect_features

    def counted(*args: Any) -> Any:
        collected.append(args[2].describe())
        return original(*args)

    monkeypatch.setattr(network, "collect_features", counted)
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], eval=test, output=tmp_path / "o.onnx", **PLAIN)
    assert len(collected) == runs


def test_other_samples_share_no_features(tmp_path: Path) -> None:
    """Rows in another order have other digests, so their labels meet their own features."""
    model, calib, _ = _made(tmp_path, "plain")
    data = dict(np.load(calib))
    order = np.random.default_rng(0).permutation(len(data["x"]))
    shuffled = {name: values[order] for name, values in data.items()}
    settings = {**PLAIN, "fold": False}
    for name, samples in (("one", data), ("other", shuffled)):
        tna_onnx.calibrate_heads(
            model, samples, heads=["colour", "shape"], output=tmp_path / f"{name}.onnx", **settings
        )
    one, other = (onnx.load(tmp_path / f"{name}.onnx").graph.initializer for name in ("one", "other"))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(onnx.numpy_helper.to_array(a), onnx.numpy_helper.to_array(b), rtol=1e-4)


def test_the_file_says_of_each_head_how_it_was_made(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    tna_onnx.calibrate_heads(model, calib, heads=["shape", "colour_head"], output=tmp_path / "o.onnx", **PLAIN)
    entries = tna_onnx.inspect(tmp_path / "o.onnx").provenance
    source = tna_onnx.inspect(model).sha256
    assert {entries[f"head/{name}/source_sha256"] for name in CLASSES} == {source}
    assert {entries[f"head/{name}/output"] for name in CLASSES} == {*CLASSES}
    assert all(key.startswith("head/") for key in entries)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tna")]


def test_a_calibrated_file_and_its_data_are_refused(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    out = tmp_path / "o.onnx"
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=out, **PLAIN)
    with pytest.raises(UnsupportedModel, match="recalibrated before; start from the original"):
        tna_onnx.calibrate_heads(out, calib, heads=["colour", "shape"], output=tmp_path / "p.onnx", **PLAIN)
    # one head alone would lose what the file says of the other
    with pytest.raises(UnsupportedModel, match="start from the original model, with all heads"):
        tna_onnx.calibrate(out, calib, head="colour", label_column="colour", output=tmp_path / "p.onnx", **PLAIN)
    with pytest.raises(DataError, match="was recalibrated on these data"):
        tna_onnx.guard(out, calib, head="colour", label_column="colour", output=tmp_path / "p.onnx", device="cpu")


def test_one_head_that_reads_the_other_is_refused(tmp_path: Path) -> None:
    model, calib, _ = _made(tmp_path, "reads")
    with pytest.raises(UnsupportedModel, match="head 'shape' reads the scores of head 'colour'"):
        tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], **PLAIN)
    assert not list(tmp_path.glob("*.tna.onnx"))


@pytest.mark.parametrize(
    ("heads", "words", "error", "message"),
    [
        (["colour"], {}, UsageError, "two or more"),
        (["colour", "colour_head"], {}, UsageError, "are one head, 'colour'"),
        (["colour", "size"], {}, UnsupportedModel, "node 'size' is not a linear head"),
        (["colour", "shape"], {"label_column": "colour"}, UsageError, "--label-column colour is for one head"),
        (["colour", "shape"], {"output_name": "colour"}, UsageError, "--head A --head B"),
        (["colour", "shape"], {"classes": ["a", "b"]}, UsageError, "--classes names the classes of one head"),
        (["colour", "shape"], {"head": "colour"}, UsageError, "name all of them in heads"),
    ],
)
def test_what_cannot_be_asked_of_several_heads(
    two: Model, heads: list[str], words: dict[str, Any], error: type[Exception], message: str
) -> None:
    model, calib, _ = two
    with pytest.raises(error, match=message):
        tna_onnx.calibrate_heads(model, calib, heads=heads, **PLAIN, **words)


def test_labels_that_are_missing_for_a_head_are_named(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    data = {name: values for name, values in np.load(calib).items() if name != "shape"}
    np.savez(tmp_path / "one.npz", **data)
    with pytest.raises(DataError, match="no array 'shape'"):
        tna_onnx.calibrate_heads(model, tmp_path / "one.npz", heads=["colour", "shape"], **PLAIN)
    assert not list(tmp_path.glob("*.tna.onnx"))


def test_features_of_one_head_are_no_data_for_two(two: Model) -> None:
    model, calib, _ = two
    labels = {name: np.load(calib)[name] for name in CLASSES}
    features = np.zeros((600, 24), np.float32)
    with pytest.raises((UsageError, DataError)):
        tna_onnx.calibrate_heads(model, {"features": features, **labels}, heads=["colour", "shape"], **PLAIN)


def test_a_missed_gate_writes_nothing_and_judges_all(two: Model, tmp_path: Path) -> None:
    model, calib, test = two
    out = tmp_path / "o.onnx"
    for order in (["colour", "shape"], ["shape", "colour"]):
        with pytest.raises(GateMissed, match="no file was written") as missed:
            tna_onnx.calibrate_heads(model, calib, heads=order, eval=test, output=out, max_nll=0.01, **PLAIN)
        result = missed.value.result
        assert [line.split(":")[0] for line in result.missed] == order
        assert (result.output, {each.output for each in result.heads.values()}) == ("", {""})
        assert not out.exists()


def test_a_dry_run_leaves_no_file(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    before = {path.name for path in tmp_path.iterdir()}
    result = tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], dry_run=True, **PLAIN)
    assert result.output == ""
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_model_in_memory_needs_a_path(two: Model) -> None:
    model, calib, _ = two
    with pytest.raises(UsageError, match="needs an output"):
        tna_onnx.calibrate_heads(onnx.load(model), calib, heads=["colour", "shape"], **PLAIN)


def test_a_model_may_be_replaced_by_its_result(two: Model) -> None:
    model, calib, _ = two
    with pytest.raises(UsageError, match="overwrite"):
        tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=model, **PLAIN)
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=model, overwrite=True, **PLAIN)
    assert tna_onnx.inspect(model).provenance


def test_a_fault_in_another_head_is_caught(two: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the other heads can fail: it compares with a file whose other head is off."""
    model, calib, _ = two
    proto = onnx.load(model)
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == "shape_bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(1e-3), "shape_bias"))
    other = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])

    class Off:
        def run(self, names: list[str], batch: dict[str, Any]) -> Any:
            return other.run(names, batch)

    monkeypatch.setattr(turn, "open_model", lambda *_: Off())
    with pytest.raises(tna_onnx.CheckFailed, match="moves output 'shape'"):
        tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "o.onnx", **PLAIN)
    assert not (tmp_path / "o.onnx").exists()


def test_the_command_line(two: Model, tmp_path: Path) -> None:
    model, calib, test = two
    words = ["--search", "none", "--map", "ts", "--eval", test, "-o", tmp_path / "o.onnx"]
    done = cli("calibrate", model, calib, "--head", "colour", "--head", "shape", *words, "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.output
    assert done.output.index("== head colour ==") < done.output.index("== head shape ==")
    told = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(told, tna_onnx.json_schema("headreports"))
    assert list(told["heads"]) == ["colour", "shape"]
    shown = cli("evaluate", tmp_path / "o.onnx", test, "--head", "shape", "--label-column", "shape")
    assert shown.exit_code == 0, shown.output
    assert cli("verify", model, tmp_path / "o.onnx").exit_code == 0
    inspected = cli("inspect", model)
    assert "calibrate all in one file with --head" in inspected.output


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--add", "confidence"], "calibrate all heads first, and then add them: tna-onnx guard"),
        (["--ood-data", "calib.npz"], "calibrate all heads first"),
        (["--engine", "processes:2"], "share one run, and --cache keeps it"),
        (["--output-kind", "logits"], "calibrate this head by itself with --output-name"),
    ],
)
def test_what_is_for_one_head_is_refused_with_what_to_do(
    two: Model, tmp_path: Path, words: list[str], advice: str
) -> None:
    model, calib, _ = two
    done = cli("calibrate", model, calib, "--head", "colour", "--head", "shape", *words)
    assert (done.exit_code, advice in done.output) == (2, True), done.output
    assert not list(tmp_path.glob("*.tna.onnx"))


def _ids(page: str) -> list[str]:
    return re.findall(r' id="([^"]+)"', page)


@pytest.mark.slow
def test_a_page_and_figures_say_which_head(two: Model, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, calib, test = two
    words = ["--method", "tna", "--eval", test, "-o", tmp_path / "o.onnx", "--report", tmp_path / "r.html"]
    words += ["--figures", tmp_path / "f", "--figure-format", "svg", "--json", tmp_path / "r.json"]
    done = cli("calibrate", model, calib, "--head", "colour", "--head", "shape", *words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text("utf-8")
    assert re.findall("<h2[^>]*>([^<]*): Result</h2>", page) == ["colour", "shape"]
    assert len(_ids(page)) == len({*_ids(page)})
    assert {link[1:] for link in re.findall('href="(#[^"]*)"', page)} <= {*_ids(page)}
    assert set(re.findall(' for="([^"]*)"', page)) <= {*_ids(page)}
    # a report from each head's own samples: both verdicts are there, and no path of a file in between
    told = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert all(f"{100 * each['comparison']['after']['ece']:.2f}" in page for each in told["heads"].values())
    numbers = [gzip.decompress(base64.b64decode(packed)).decode() for packed in re.findall('base64,([^"]+)"', page)]
    assert [json.loads(text)["head"] for text in numbers] == ["colour_head", "shape_head"]
    names = re.findall('download="([^"]*report.json.gz)"', page)
    assert len({*names}) == len(CLASSES), names
    assert not [text for text in (page, *numbers) if ".tna-onnx-" in text]
    assert {path.name for path in (tmp_path / "f").iterdir()} == {*CLASSES}
    for name in CLASSES:
        assert (tmp_path / "f" / name / "reliability.svg").is_file()
    tna_onnx.calibrate_heads(
        model, calib, heads=["colour", "shape"], output=tmp_path / "p.onnx", report=tmp_path / "p.html",
        figures=tmp_path / "g", **PLAIN,
    )  # fmt: skip
    assert (tmp_path / "g" / "shape" / "reliability.pdf").is_file()
    assert re.findall("<h2[^>]*>([^<]*): Result</h2>", (tmp_path / "p.html").read_text("utf-8")) == [*CLASSES]


def test_a_missed_gate_has_its_page(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    words = ["--max-nll", "0.01", "--map", "ts", "--search", "none", "--report", tmp_path / "r.html"]
    done = cli("calibrate", model, calib, "--head", "colour", "--head", "shape", *words)
    assert done.exit_code == 1, done.output
    page = (tmp_path / "r.html").read_text("utf-8")
    assert page.count("max-nll") >= 2
    assert "What the new file changes" in page
    assert not list(tmp_path.glob("*.tna.onnx"))


@pytest.mark.parametrize(
    ("outputs", "folders"),
    [
        (["colour", "shape"], ["colour", "shape"]),
        (["a/b", "../c"], ["a-b", "c"]),
        (["y", "Y"], ["y-0", "Y-1"]),
        (["/", "a b", "a/b"], ["-0", "a-b-1", "a-b-2"]),
    ],
)
def test_folders_of_heads_are_names_on_every_disk(outputs: list[str], folders: list[str]) -> None:
    reports: Any = dict.fromkeys(outputs)
    assert [*HeadReports("m.onnx", "", "", reports).folders.values()] == folders


@pytest.mark.parametrize(("how", "stores"), [("plain", 1), ("neck", 2)])
def test_a_cache_holds_the_features_of_the_original_model(tmp_path: Path, how: str, stores: int) -> None:
    """The oracle is `features` on one head: the same store, so that either takes over what the other has left."""
    model, calib, test = _made(tmp_path, how)
    cache = tmp_path / "cache"
    words = ["--head", "colour", "--head", "shape", "--search", "none", "--eval", test, "-o", tmp_path / "o.onnx"]
    done = cli("calibrate", model, calib, *words, "--map", "ets", "--cache", cache)
    assert done.exit_code == 0, done.output
    made = {path.name for path in cache.iterdir()}
    assert len(made) == stores
    for name in [*CLASSES][:stores]:
        alone = tna_onnx.features(model, calib, tmp_path / "alone", head=name, label_column=name)
        assert Path(alone.folder).name in made
        for file in ("features.bin", "labels.npy"):
            assert (Path(alone.folder) / file).read_bytes() == (cache / Path(alone.folder).name / file).read_bytes()
    fresh = (tmp_path / "o.onnx").read_bytes()
    # settings of an earlier turn say nothing of the features
    assert cli("calibrate", model, calib, *words, "--map", "ts", "--cache", cache).exit_code == 0
    assert cli("calibrate", model, calib, *words, "--map", "ets", "--cache", cache).exit_code == 0
    assert {path.name for path in cache.iterdir()} == made
    assert (tmp_path / "o.onnx").read_bytes() == fresh


def test_one_store_is_no_data_for_two_heads(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    tna_onnx.features(model, calib, tmp_path / "cache", head="colour", label_column="colour")
    with pytest.raises(UsageError, match="of one head; several heads need the data"):
        tna_onnx.calibrate_heads(model, tmp_path / "cache", heads=["colour", "shape"], **PLAIN)
    # nor where it is to judge, or to be compared with
    with pytest.raises(UsageError, match="of one head; several heads need the data"):
        tna_onnx.calibrate_heads(model, calib, eval=tmp_path / "cache", heads=["colour", "shape"], **PLAIN)


def test_a_store_has_the_labels_of_its_own_head(two: Model, tmp_path: Path) -> None:
    """Both heads read the same features, so the tensor's name alone does not tell."""
    model, calib, _ = two
    tna_onnx.features(model, calib, tmp_path / "cache", head="colour", label_column="colour")
    settings = {**PLAIN, "output": tmp_path / "o.onnx"}
    tna_onnx.calibrate(model, tmp_path / "cache", head="colour", **settings)
    with pytest.raises(DataError, match=r"has the labels of head '.*', not of '.*'; choose the same --head"):
        tna_onnx.calibrate(model, tmp_path / "cache", head="shape", overwrite=True, **settings)


def test_training_features_are_those_of_each_head(tmp_path: Path) -> None:
    model, calib, test = _made(tmp_path, "neck")
    settings = {**PLAIN, "map": "aar", "train_features": test}
    result = tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "o.onnx", **settings)
    for name in CLASSES:
        alone = tna_onnx.calibrate(
            model, calib, output=tmp_path / f"{name}.onnx", head=name, label_column=name, **settings
        )
        assert result.heads[name].parameters == alone.parameters


def test_the_files_are_compared_one_after_the_other(
    two: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hold the whole network: two at a time would take twice the memory."""
    model, calib, _ = two
    open_now: weakref.WeakSet[Any] = weakref.WeakSet()

    def counted(function: Any) -> Any:
        def opened(*args: Any) -> Any:
            assert not open_now
            session = function(*args)
            open_now.add(session)
            return session

        return opened

    for name in ("open_model", "open_session"):
        monkeypatch.setattr(turn, name, counted(getattr(turn, name)))
    # as outputs of pixels would
    monkeypatch.setattr(turn, "_KEPT", 1)
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "o.onnx", **PLAIN)


def test_an_error_names_the_model_and_no_file_in_between(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    data = dict(np.load(calib))
    data["shape"] = np.zeros_like(data["shape"])
    with pytest.raises(DataError) as refused:
        tna_onnx.calibrate_heads(model, data, heads=["colour", "shape"], output=tmp_path / "o.onnx", **PLAIN)
    assert str(refused.value).startswith("head 'shape': ")
    assert ".tna-onnx-" not in str(refused.value)


def test_heads_of_classes_and_of_labels(tmp_path: Path) -> None:
    """Each output says what it holds: a Softmax beside a Sigmoid. The oracle is `calibrate` on one of them."""
    proto = _proto("plain")
    for node in proto.graph.node:
        if node.output[0] in CLASSES:
            node.output[0] += "_logits"
    proto.graph.node.append(helper.make_node("Softmax", ["colour_logits"], ["colour"]))
    proto.graph.node.append(helper.make_node("Sigmoid", ["shape_logits"], ["shape"]))
    onnx.save(proto, tmp_path / "m.onnx")
    rng = np.random.default_rng(3)
    data = _labelled(_proto("plain"), 1)
    data["shape"] = (rng.random((600, 3)) < _run((tmp_path / "m.onnx"), data["x"])["shape"]).astype(np.int64)
    out = tmp_path / "o.onnx"
    settings = {**PLAIN, "fail_if_worse": False}
    result = tna_onnx.calibrate_heads(tmp_path / "m.onnx", data, heads=["colour", "shape"], output=out, **settings)
    for name in CLASSES:
        words = {**settings, "head": name, "label_column": name}
        alone = tna_onnx.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "one.onnx", **words)
        assert result.heads[name].comparison.after == alone.comparison.after
    # the second turn reads a file of the first one, which no user knows
    message = re.escape(f"head 'colour': {tmp_path / 'm.onnx'}: map label-ts is for several labels")
    with pytest.raises(UnsupportedModel, match=message):
        tna_onnx.calibrate_heads(
            tmp_path / "m.onnx", data, heads=["shape", "colour"], output=out, **{**PLAIN, "map": "label-ts"}
        )


def _with_a_list(proto: onnx.ModelProto, *, apart: bool) -> onnx.ModelProto:
    """Give the scores of both heads as a list of arrays, as scikit-learn's MultiOutputClassifier is exported."""
    proto.graph.node.append(helper.make_node("SequenceConstruct", [*CLASSES], ["scores"], name="list"))
    if not apart:
        del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_sequence_value_info("scores", onnx.TensorProto.FLOAT, None))
    return proto


def test_scores_in_a_list_of_arrays_are_refused_with_what_to_do(tmp_path: Path) -> None:
    onnx.save(_with_a_list(_proto("plain"), apart=False), tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", **_labelled(_proto("plain"), 1))
    for words in (["inspect", tmp_path / "m.onnx"], ["calibrate", tmp_path / "m.onnx", tmp_path / "calib.npz"]):
        done = cli(*words)
        assert done.exit_code == 3, done.output
        said = " ".join(done.output.split())
        assert "a list of 2 arrays, one a task" in said
        assert "--head colour --head shape" in said
        # what the arrays hold is not the question
        assert "--output-kind" not in said


@pytest.mark.parametrize("settings", [PLAIN, {**PLAIN, "map": "ets"}])
def test_a_list_beside_the_heads_has_their_new_scores(tmp_path: Path, settings: dict[str, Any]) -> None:
    model, calib, _ = _made(tmp_path, "plain")
    onnx.save(_with_a_list(onnx.load(model), apart=True), model)
    out = tmp_path / "o.onnx"
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=out, **settings)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    x = np.load(calib)["x"]
    colour, shape, scores = session.run(["colour", "shape", "scores"], {"x": x})
    np.testing.assert_array_equal(scores[0], colour)
    np.testing.assert_array_equal(scores[1], shape)
    # arrays of different width are compared as one
    verified = cli("verify", model, out, "--data", calib, "--head", "shape", "--label-column", "shape")
    assert verified.exit_code == 0, verified.output
    assert f"{600 * sum(CLASSES.values()):,} of {600 * sum(CLASSES.values()):,} values differ" in verified.output


def test_a_result_shows_itself(two: Model, tmp_path: Path) -> None:
    model, calib, _ = two
    result = tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "o.onnx", **PLAIN)
    assert {row["head"] for row in result.records()} == {*CLASSES}
    assert repr(result).startswith("<HeadReports on m.onnx: colour: ts, improved; shape: ts, improved>")
    assert result.to_dict()["heads"]["shape"]["verdict"] == result.heads["shape"].verdict


@pytest.mark.parametrize("form", ["npz", "npy", "mapping", "csv"])
def test_labels_by_the_name_of_the_output(two: Model, tmp_path: Path, form: str) -> None:
    model, calib, _ = two
    data = dict(np.load(calib))
    words: dict[str, Any] = {}
    samples: Any = calib
    if form == "npy":
        samples = tmp_path / "arrays"
        samples.mkdir()
        for name, values in data.items():
            np.save(samples / f"{name}.npy", values)
    elif form == "mapping":
        samples = data
    elif form == "csv":
        samples = tmp_path / "table.csv"
        names = [f"x{k}" for k in range(8)]
        columns = [*data["x"].T, *(data[name] for name in CLASSES)]
        rows = [[*names, *CLASSES], *zip(*columns, strict=True)]
        samples.write_text("\n".join(",".join(map(str, row)) for row in rows))
        words["columns"] = names
    out = tmp_path / "o.onnx"
    result = tna_onnx.calibrate_heads(model, samples, heads=["colour", "shape"], output=out, **PLAIN, **words)
    assert all(each.comparison.after.nll < each.comparison.before.nll for each in result.heads.values())


@pytest.mark.parametrize("kind", ["external data", "IR version 3"])
def test_files_of_other_kinds(two: Model, tmp_path: Path, kind: str) -> None:
    """Data files of the turns in between are gone; constants of old files are nodes."""
    model, calib, _ = two
    proto = onnx.load(model)
    folder = tmp_path / "own"
    folder.mkdir()
    if kind == "external data":
        onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    else:
        proto.ir_version = 3
        proto.opset_import[0].version = 8
        proto.graph.input.extend(tensor_info(t.name, list(t.dims)) for t in proto.graph.initializer)
        onnx.save(proto, folder / "m.onnx")
    out = folder / "o.onnx"
    settings = {**TILTED, "map": "ets"}
    result = tna_onnx.calibrate_heads(folder / "m.onnx", calib, heads=["colour", "shape"], output=out, **settings)
    assert all(each.standing.word == "improved" for each in result.heads.values())
    assert tna_onnx.verify(folder / "m.onnx", out).passed
    data = [path.name for path in folder.iterdir() if path.name.startswith("o.onnx.")]
    assert len(data) == (kind == "external data")
    _run(out, np.load(calib)["x"])


def test_nodes_without_names(tmp_path: Path) -> None:
    """Their labels hold the place in the file, which moves when the first head gets a map."""
    model, calib, _ = _made(tmp_path, "plain")
    proto = onnx.load(model)
    for node in proto.graph.node:
        node.name = ""
    onnx.save(proto, model)
    settings = {**PLAIN, "map": "ets"}
    result = tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=tmp_path / "o.onnx", **settings)
    digest = hashlib.sha256((tmp_path / "o.onnx").read_bytes()).hexdigest()
    assert {each.output_sha256 for each in result.heads.values()} == {digest}
    assert {each.changes.target for each in result.heads.values() if each.changes} == {str(tmp_path / "o.onnx")}


@pytest.mark.parametrize("names", [("prior", "logits"), ("y", "y/b"), ("guard", "a b")])
def test_outputs_with_names_that_the_file_uses_itself(tmp_path: Path, names: tuple[str, str]) -> None:
    model, calib, _ = _made(tmp_path, "plain")
    proto = onnx.load(model)
    new = dict(zip(CLASSES, names, strict=True))
    for node in proto.graph.node:
        node.output[:] = [new.get(name, name) for name in node.output]
    for info in proto.graph.output:
        info.name = new[info.name]
    onnx.save(proto, model)
    data = {new.get(name, name): values for name, values in np.load(calib).items()}
    settings = {**PLAIN, "map": "ets"}
    tna_onnx.calibrate_heads(model, data, heads=list(names), output=tmp_path / "o.onnx", **settings)
    assert tna_onnx.verify(model, tmp_path / "o.onnx").passed


def test_a_change_of_a_file_of_several_heads_is_seen(two: Model, tmp_path: Path) -> None:
    """The original has maps behind its heads already: nothing explains a difference."""
    model, calib, _ = two
    out = tmp_path / "o.onnx"
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=out, **{**PLAIN, "map": "ets"})
    proto = onnx.load(out)
    next(node for node in proto.graph.node if node.op_type == "Relu").op_type = "Tanh"
    onnx.save(proto, tmp_path / "p.onnx")
    found = tna_onnx.verify(out, tmp_path / "p.onnx")
    assert not found.passed
    assert found.differences


def test_decisions_on_one_head_say_nothing_of_the_other(two: Model, tmp_path: Path) -> None:
    model, calib, test = two
    out = tmp_path / "o.onnx"
    tna_onnx.calibrate_heads(model, calib, heads=["colour", "shape"], output=out, **{**PLAIN, "map": "ets"})
    rows = dict(np.load(test))
    guarded = tmp_path / "g.onnx"
    words = {"add": ["accept"], "risk": 60.0, "device": "cpu"}
    tna_onnx.guard(out, rows, head="shape", label_column="shape", output=guarded, **words)
    fresh = _labelled(onnx.load(model), 5)
    assert tna_onnx.evaluate(guarded, fresh, head="shape", label_column="shape").decisions is not None
    assert tna_onnx.evaluate(guarded, fresh, head="colour", label_column="colour").decisions is None


@pytest.mark.parametrize("count", [3, 4])
def test_labels_of_the_heads_at_other_positions(tmp_path: Path, count: int) -> None:
    """Each head has the features of its own labelled positions."""
    rng = np.random.default_rng(0)
    tensors = {"a_weight": _draw(rng, 8, 4), "b_weight": _draw(rng, 8, 3)}
    nodes = [helper.make_node("Relu", ["x"], ["z"])]
    nodes += [helper.make_node("MatMul", ["z", f"{name}_weight"], [name], name=f"{name}_head") for name in "ab"]
    outputs = [tensor_info("a", ["N", "T", 4]), tensor_info("b", ["N", "T", 3])]
    onnx.save(small_model(nodes, [tensor_info("x", ["N", "T", 8])], outputs, tensors), tmp_path / "m.onnx")
    x = _draw(rng, 200, 6, 8)
    data: dict[str, NDArray[Any]] = {"x": x}
    for name, skipped in (("a", [0, 1, 2]), ("b", [5, 4, 3, 2][:count])):
        logits = np.maximum(x, 0) @ tensors[f"{name}_weight"]
        data[name] = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=-1)
        data[name][:, skipped] = -100
    out = tmp_path / "o.onnx"
    result = tna_onnx.calibrate_heads(tmp_path / "m.onnx", data, heads=["a", "b"], output=out, **PLAIN)
    for name in "ab":
        words = {**PLAIN, "head": name, "label_column": name}
        alone = tna_onnx.calibrate(tmp_path / "m.onnx", data, output=tmp_path / "one.onnx", overwrite=True, **words)
        assert result.heads[name].comparison.after.nll == alone.comparison.after.nll
