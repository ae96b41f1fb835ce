"""A patch gives the file that it was made of, byte for byte; of another model, or damaged, nothing."""

import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tna_onnx
from tests.builders import small_model
from tests.cli.test_verify import scattered
from tests.conftest import Small
from tests.pipeline.test_integer_heads import FORMS, quantized, samples
from tests.support import PLAIN, TILTED, WALKED, cli, ok, refused
from tna_onnx.graph import tensors
from tna_onnx.graph.nodes import scores_model
from tna_onnx.pipeline.change import _seal, _text_of
from tna_onnx.pipeline.patch import _npz, _read_npz
from tna_onnx.runtime import adapter_bytes, read_adapter

LENIENT: dict[str, Any] = {"fail_if_worse": False, "trust_labels": True}

SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": PLAIN,
    "refit": {**PLAIN, "map": "refit"},
    "appended": {**PLAIN, "map": "bias-floor"},
    "isotonic": {**PLAIN, "map": "irova"},
    "features": {**PLAIN, "map": "aar"},
    "tilted": {**WALKED, "map": "ets"},
    "decisions": {**PLAIN, "add": ("accept", "set", "ood")},
}


@pytest.mark.parametrize(("name", "ending"), [*zip(SETTINGS, itertools.cycle(["npz", "safetensors"]), strict=False)])
def test_it_gives_the_same_bytes(small: Small, tmp_path: Path, name: str, ending: str) -> None:
    both = tmp_path / "model.onnx", tmp_path / "applied.onnx"
    patch = tmp_path / f"head.{ending}"
    tna_onnx.calibrate(small.model, small.calib, output=both[0], patch=patch, **SETTINGS[name])
    result = tna_onnx.apply(small.model, patch, output=both[1])
    assert both[0].read_bytes() == both[1].read_bytes()
    assert result.intact


def test_weight_and_bias_are_under_their_names_for_other_readers(small: Small, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    for ending, load in (("npz", np.load), ("safetensors", safetensors.load_file)):
        patch = tmp_path / f"head.{ending}"
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", patch=patch, **PLAIN)
        written = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "o.onnx").graph.initializer}
        values = load(patch)
        for name in ("weight", "bias"):
            np.testing.assert_array_equal(values[name], written[name])
        assert "hidden" not in values


@pytest.mark.parametrize("form", FORMS)
def test_heads_of_integers(tmp_path: Path, form: str) -> None:
    _same_bytes(quantized(form, tmp_path), samples(3), tmp_path, **PLAIN)
    if form == "QDQ":
        _same_bytes(tmp_path / "model.onnx", samples(3), tmp_path, **TILTED)


def _same_bytes(model: Path, calib: Any, folder: Path, **settings: Any) -> Path:
    (folder / "x").mkdir(exist_ok=True)
    report = tna_onnx.calibrate(
        model,
        calib,
        output=folder / "o.onnx",
        patch=folder / "p.npz",
        fail_if_worse=False,
        trust_labels=True,
        **settings,
    )
    # external data are named after the model
    tna_onnx.apply(model, folder / "p.npz", output=folder / "x/o.onnx")
    for path in (folder / "x").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()
    assert report.patch == (folder / "p.npz").read_bytes()
    return folder / "o.onnx"


@pytest.mark.parametrize("settings", [PLAIN, TILTED])
def test_external_data(small: Small, tmp_path: Path, settings: dict[str, Any]) -> None:
    model = scattered(small.model, tmp_path, "a.bin", "b.bin")
    _same_bytes(model, small.calib, tmp_path, **settings)


def _drawn_samples(folder: Path) -> None:
    """Write samples with labels drawn at temperature 2."""
    session = onnxruntime.InferenceSession(folder / "m.onnx")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((800, session.get_inputs()[0].shape[1])).astype(np.float32)
    (p,) = session.run(["p"], {"x": x})
    labels = np.argmax(np.log(p + 1e-9) / 2 + rng.gumbel(size=p.shape), axis=1)
    np.savez(folder / "calib.npz", x=x, labels=labels)


@pytest.mark.parametrize("name", ["ts", "bias", "refit"])
def test_numbers_in_attributes(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(2)
    coefficients = (3 * rng.standard_normal(12)).tolist()
    node = helper.make_node(
        "LinearClassifier", ["x"], ["label", "p"], name="lc", domain="ai.onnx.ml", coefficients=coefficients,
        intercepts=[0.1, 0.2, -0.3], classlabels_ints=[0, 1, 2], multi_class=1, post_transform="SOFTMAX",
    )  # fmt: skip
    outputs = {"label": (["N"], np.int64), "p": ["N", 3]}
    onnx.save(small_model([node], {"x": ["N", 4]}, outputs, domains={"ai.onnx.ml": 3}), tmp_path / "m.onnx")
    _drawn_samples(tmp_path)
    _same_bytes(tmp_path / "m.onnx", tmp_path / "calib.npz", tmp_path, **{**PLAIN, "map": name})


@pytest.mark.parametrize("large", [2**20, 16])
def test_a_weight_of_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(tensors, "_LARGE", large)
    weight = tensors.float_tensor(np.random.default_rng(0).standard_normal((3, 6)) * 3, "bfloat16", "stored")
    nodes = [
        helper.make_node("Cast", ["stored"], ["w"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1),
        helper.make_node("Softmax", ["logits"], ["p"], axis=1),
    ]
    model = small_model(nodes, {"x": ["N", 6]}, {"p": ["N", 3]})
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx")
    _drawn_samples(tmp_path)
    written = onnx.load(_same_bytes(tmp_path / "m.onnx", tmp_path / "calib.npz", tmp_path, **PLAIN))
    (changed,) = written.graph.initializer
    assert (changed.name, changed.data_type) == ("stored", onnx.TensorProto.BFLOAT16)
    assert changed.raw_data != weight.raw_data


def test_nothing_to_change_is_a_patch_too(small: Small, tmp_path: Path) -> None:
    x = np.load(small.calib)["x"]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(small.model).graph.initializer}
    logits = np.maximum(x @ values["hidden"], 0) @ values["weight"].T + values["bias"]
    labels = np.argmax(logits + np.random.default_rng(3).gumbel(size=logits.shape), axis=1)
    output = _same_bytes(small.model, {"x": x, "labels": labels}, tmp_path, search="none", device="cpu")
    assert output.read_bytes() == small.model.read_bytes()


def test_the_commands(small: Small, tmp_path: Path) -> None:
    patch = tmp_path / "head.npz"
    dry = ok("calibrate", small.model, small.calib, "--patch", patch, "--dry-run", "--search", "none", "--map", "ts")
    assert (f"patch    {patch}" in dry.output, "wrote    nothing" in dry.output) == (True, True)
    assert "intact" in ok("apply", small.model, patch, "-o", tmp_path / "n.onnx", "--json", tmp_path / "r.json").output
    assert json.loads((tmp_path / "r.json").read_text())["recalibrated"] == str(tmp_path / "n.onnx")
    ok("verify", small.model, tmp_path / "n.onnx")
    # the calibrated file is another model, and so is one with another head
    refused(1, "belongs to the model with SHA-256", "apply", tmp_path / "n.onnx", patch, "-o", tmp_path / "no.onnx")
    refused(2, "cannot be read", "apply", small.model, tmp_path / "none.npz", "-o", tmp_path / "no.onnx")
    refused(4, "no patch of tna-onnx", "apply", small.model, small.calib, "-o", tmp_path / "no.onnx")
    refused(2, ".safetensors", "calibrate", small.model, small.calib, "--patch", tmp_path / "head.bin")
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_damage_is_refused_or_does_no_harm(small: Small, tmp_path: Path, ending: str) -> None:
    patch = tmp_path / f"p.{ending}"
    tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", patch=patch, **PLAIN)
    good, random = patch.read_bytes(), Random(0)
    refused = 0
    for k in range(60):
        bad = bytearray(good)
        at = random.randrange(len(bad))
        bad[at] ^= 1 << random.randrange(8)
        content = bytes(bad if k % 3 else bad[:at])
        try:
            tna_onnx.apply(small.model, content, output=tmp_path / "n.onnx")
        except tna_onnx.TnaError:
            refused += 1
        else:
            assert (tmp_path / "n.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()
    assert refused > 40


def _served(model: Path, x: Any, adapter: Path | None = None, session: Any = None) -> Any:
    session = session or onnxruntime.InferenceSession(model)
    options = onnxruntime.RunOptions()
    if adapter is not None:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    return session.run(None, {"x": x}, options)[0]


@pytest.mark.parametrize("settings", [{"search": "none"}, TILTED])
def test_one_session_serves_two_calibrations(small: Small, tmp_path: Path, settings: dict[str, Any]) -> None:
    data = dict(np.load(small.calib))
    tenants = {}
    for k, rows in enumerate((slice(0, 700), slice(700, 1500))):
        calib = {name: values[rows] for name, values in data.items()}
        if k:  # another world: other temperatures fit
            calib["labels"] = calib["labels"].copy()
            calib["labels"][::3] = np.random.default_rng(k).integers(0, 5, len(calib["labels"][::3]))
        tenants[tmp_path / f"{k}.onnx_adapter"] = tmp_path / f"{k}.onnx"
        tna_onnx.calibrate(
            small.model, calib, output=tmp_path / f"{k}.onnx", patch=tmp_path / f"{k}.onnx_adapter", **settings
        )
    first = next(iter(tenants))
    ok("apply", small.model, first, "-o", tmp_path / "served.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "served.onnx")
    x = np.load(small.test)["x"][:200]
    plain = _served(small.model, x)
    for _ in range(2):  # in turn
        for adapter, written in tenants.items():
            expected = _served(written, x)
            # another kernel where the weight is no constant: 32 products are added up in another order
            np.testing.assert_allclose(_served(written, x, adapter, session), expected, rtol=1e-4, atol=1e-4)
            assert np.abs(expected - plain).max() > 0.1
    np.testing.assert_allclose(_served(small.model, x, None, session), plain, rtol=1e-4, atol=1e-4)


def test_an_adapter_holds_weight_and_bias_alone(small: Small, tmp_path: Path) -> None:
    words = ("calibrate", small.model, small.calib, "--patch", tmp_path / "a.onnx_adapter", "-o", tmp_path / "o.onnx")
    refused(3, "weight and bias alone", *words, "--search", "none", "--map", "irova")
    ok(*words, "--search", "none")
    patched = [tmp_path / "o.onnx", tmp_path / "a.onnx_adapter"]
    refused(1, "belongs to another model", "apply", *patched, "-o", tmp_path / "n.onnx")
    (tmp_path / "b.onnx_adapter").write_bytes((tmp_path / "a.onnx_adapter").read_bytes()[:40])
    bad = cli("apply", small.model, tmp_path / "b.onnx_adapter", "-o", tmp_path / "n.onnx")
    assert bad.exit_code == 4, bad.output
    assert not (tmp_path / "n.onnx").exists()


def test_a_head_of_integers_has_no_adapter(tmp_path: Path) -> None:
    model = quantized("QDQ", tmp_path)
    with pytest.raises(tna_onnx.UnsupportedModel, match=r"as \.npz"):
        tna_onnx.calibrate(model, samples(3), output=tmp_path / "o.onnx", patch=tmp_path / "a.onnx_adapter", **LENIENT)


@pytest.fixture(scope="module")
def refitted(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return a patch of a refitted head, and the tensors of the model before and after."""
    folder = tmp_path_factory.mktemp("refitted")
    settings = {**PLAIN, "map": "refit"}
    tna_onnx.calibrate(small.model, small.calib, output=folder / "o.onnx", patch=folder / "p.npz", **settings)
    old, new = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        for path in (small.model, folder / "o.onnx")
    )
    return folder / "p.npz", old, new


@pytest.mark.parametrize("turned", [False, True])
def test_the_checkpoint_of_the_model_gets_the_new_head(
    small: Small, refitted: Any, tmp_path: Path, turned: bool
) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    patch, old, new = refitted
    other = np.arange(7, dtype=np.int64)
    state = {
        "fc.weight": np.ascontiguousarray(old["weight"].T if turned else old["weight"]),
        "fc.bias": old["bias"],
        "seen": other,
        "body": old["hidden"],
    }
    path = tmp_path / "model.safetensors"
    safetensors.save_file(state, path, {"format": "pt"})
    ok("apply", small.model, patch, "--checkpoint", path, "-q")
    written = safetensors.load_file(tmp_path / "model.tna.safetensors")
    np.testing.assert_array_equal(written["fc.weight"], new["weight"].T if turned else new["weight"])
    np.testing.assert_array_equal(written["fc.bias"], new["bias"])
    np.testing.assert_array_equal(written["body"], old["hidden"])
    np.testing.assert_array_equal(written["seen"], other)
    assert path.read_bytes()[:200] == (tmp_path / "model.tna.safetensors").read_bytes()[:200]


def test_a_checkpoint_of_bfloat16(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = torch.tensor(rng.standard_normal((3, 6))).bfloat16()
    model = scores_model(weight.shape[1], (weight.float().numpy(), np.zeros(3, np.float32)))
    x = rng.standard_normal((300, 6)).astype(np.float32)
    logits = x @ weight.float().numpy().T
    y = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    onnx.save(model, tmp_path / "m.onnx")
    made = tna_onnx.calibrate(
        tmp_path / "m.onnx", {"scores": x, "labels": y}, dry_run=True, patch=tmp_path / "p.npz", **PLAIN
    )
    safetensors.save_file({"w": weight, "b": torch.zeros(3).half()}, tmp_path / "c.safetensors")
    tna_onnx.apply(tmp_path / "m.onnx", tmp_path / "p.npz", checkpoint=tmp_path / "c.safetensors")
    written = safetensors.load_file(tmp_path / "c.tna.safetensors")["w"]
    expected = (weight.float() / made.parameters["temperature"]).bfloat16()
    assert torch.equal(written, expected)


def test_checkpoints_that_cannot_be_written(small: Small, refitted: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    patch, old, _ = refitted
    path = tmp_path / "model.safetensors"

    def refused(*words: Any) -> str:
        before = sorted(tmp_path.iterdir())
        done = cli("apply", small.model, patch, "--checkpoint", path, *words)
        assert sorted(tmp_path.iterdir()) == before
        return f"{done.exit_code} {done.stderr}"

    assert refused().startswith("2 ")
    path.write_bytes(b"\xff" * 100)
    assert "4 " in refused()
    header = json.dumps({"fc.weight": {"dtype": "F32", "shape": [5, 32], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    assert "4 " in refused()
    safetensors.save_file({"fc.bias": old["bias"], "fc.weight": old["weight"] + 1}, path)
    assert "no tensor holds the values of 'weight'" in refused()
    safetensors.save_file({"a": old["weight"], "b": old["weight"], "fc.bias": old["bias"]}, path)
    assert "'a', 'b' all hold" in refused()
    assert "is the checkpoint" in refused("-o", path)
    ets = tmp_path / "ets.npz"
    tna_onnx.calibrate(small.model, small.calib, dry_run=True, patch=ets, **PLAIN | {"map": "irova"}, **LENIENT)
    done = cli("apply", small.model, ets, "--checkpoint", path)
    assert (done.exit_code, "--map ts" in done.stderr) == (3, True)


def test_values_that_do_not_fit_the_type_of_the_checkpoint(tmp_path: Path) -> None:
    """The model was made of float16 values, which a calibration may leave."""
    safetensors = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    weight = np.full((2, 3), 60000, np.float16)
    weight[0] = [1, 2, 3]
    x = rng.standard_normal((400, 3)).astype(np.float32) / 1e5
    y = (x @ (weight[1] - weight[0]).astype(np.float32) * 3 + rng.logistic(size=400) > 0).astype(np.int64)
    onnx.save(scores_model(weight.shape[1], (weight.astype(np.float32), np.zeros(2, np.float32))), tmp_path / "m.onnx")
    data = {"scores": x, "labels": y}
    made = tna_onnx.calibrate(tmp_path / "m.onnx", data, dry_run=True, patch=tmp_path / "p.npz", **PLAIN, **LENIENT)
    assert made.parameters["temperature"] < 60000 / 65504
    safetensors.save_file({"w": weight}, tmp_path / "c.safetensors")
    with pytest.raises(tna_onnx.UnsupportedModel, match="does not fit its float16"):
        tna_onnx.apply(tmp_path / "m.onnx", tmp_path / "p.npz", checkpoint=tmp_path / "c.safetensors")
    assert not (tmp_path / "c.tna.safetensors").exists()


def test_an_adapter_makes_no_checkpoint(small: Small, tmp_path: Path) -> None:
    adapter = tmp_path / "a.onnx_adapter"
    tna_onnx.calibrate(small.model, small.calib, dry_run=True, patch=adapter, **PLAIN)
    with pytest.raises(tna_onnx.UsageError, match="not an adapter"):
        tna_onnx.apply(small.model, adapter, checkpoint=tmp_path / "c.safetensors")


# --- Patches and adapters that someone has changed: `apply` refuses them, and writes no file


Arrays = dict[str, np.ndarray]

KINDS: dict[str, dict[str, Any]] = {"folded": {"map": "ts"}, "refitted": {"map": "refit"}, "appended": {"map": "irova"}}


@pytest.fixture(scope="module")
def patches(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a patch of each kind of change."""
    folder = tmp_path_factory.mktemp("patches")
    written = {}
    for kind, words in KINDS.items():
        settings = {**words, "search": "none", "device": "cpu", "fail_if_worse": False, "overwrite": True}
        tna_onnx.calibrate(small.model, small.calib, output=folder / "o.onnx", patch=folder / "p.npz", **settings)
        written[kind] = (folder / "p.npz").read_bytes()
    return written


Tamper = Callable[[Arrays, dict[str, Any]], object]


def _largest(change: Callable[[np.ndarray], np.ndarray]) -> Tamper:
    def tamper(arrays: Arrays, _: dict[str, Any]) -> None:
        name = max(arrays, key=lambda each: arrays[each].size)
        arrays[name] = change(arrays[name])

    return tamper


def step_twice(_: Arrays, text: dict[str, Any]) -> None:
    steps = json.loads(text["entries"]["change"])["steps"]
    text["entries"]["change"] = _text_of(2 * steps)


TAMPERS: dict[str, Tamper] = {
    "number": _largest(lambda a: a + (np.arange(a.size).reshape(a.shape) == 0).astype(a.dtype)),
    "no number": _largest(lambda a: a * np.float32(np.nan)),
    "other shape": _largest(lambda a: a.reshape(-1)[:-1]),
    "other type": _largest(lambda a: a.astype(np.float64)),
    "array of the backbone": lambda arrays, _: arrays.update(hidden=np.zeros((8, 32), np.float32)),
    "array that nobody reads": lambda arrays, _: arrays.update({"tna_onnx/zz": np.ones(3, np.float32)}),
    "array gone": lambda arrays, _: arrays.clear(),
    "another source": lambda _, text: text.update(source="0" * 64),
    "another map": lambda _, text: text["entries"].update(map="svs", method="svs"),
    "entry gone": lambda _, text: text["entries"].pop("source_sha256"),
    "no steps": lambda _, text: text["entries"].pop("change"),
    "step twice": step_twice,
    "types of another": lambda arrays, text: text.update(types={next(iter(arrays)): [7, 1]}),
}


def _packed(arrays: Arrays, text: dict[str, Any]) -> bytes:
    if "seal" in text["entries"]:
        text["entries"]["seal"] = _seal(text["entries"])
    return _npz(arrays, json.dumps(text))


@pytest.mark.parametrize("how", TAMPERS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_tampered_patch_is_applied(
    small: Small, patches: dict[str, bytes], tmp_path: Path, kind: str, how: str
) -> None:
    arrays, text = _read_npz(patches[kind])
    words = json.loads(text)
    TAMPERS[how](arrays, words)
    patch = _packed(arrays, words)
    assert patch != patches[kind]
    with pytest.raises((tna_onnx.DataError, tna_onnx.CheckFailed)):
        tna_onnx.apply(small.model, patch, output=tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_numbers_of_a_large_array_are_what_a_patch_leaves_open(
    small: Small, patches: dict[str, bytes], tmp_path: Path
) -> None:
    """As in a file: a forged digest and seal. What is applied otherwise is the same file, to the byte."""
    arrays, text = _read_npz(patches["refitted"])
    words = json.loads(text)
    arrays["weight"] = -arrays["weight"]
    change = json.loads(words["entries"]["change"])
    change["steps"][0]["digests"]["weight"] = hashlib.sha256(arrays["weight"].tobytes()).hexdigest()
    words["entries"]["change"] = _text_of(change["steps"])
    tna_onnx.apply(small.model, _packed(arrays, words), output=tmp_path / "o.onnx")
    assert not tna_onnx.verify(small.model, tmp_path / "o.onnx", data=small.test, device="cpu").passed


ADAPTERS: dict[str, Callable[[Arrays], object]] = {
    "backbone": lambda a: a.update(hidden=np.zeros((8, 32), np.float32)),
    "unknown name": lambda a: a.update(other=np.zeros(3, np.float32)),
    "weight alone": lambda a: a.pop("bias"),
    "NaN": lambda a: a.update(weight=a["weight"] * np.float32(np.nan)),
    "infinite": lambda a: a.update(bias=a["bias"] + np.float32(np.inf)),
    "shape": lambda a: a.update(weight=a["weight"].T.copy()),
    "type": lambda a: a.update(weight=a["weight"].astype(np.float64)),
}


@pytest.fixture(scope="module")
def adapter(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that is applied."""
    folder = tmp_path_factory.mktemp("adapter")
    path = folder / "a.onnx_adapter"
    tna_onnx.calibrate(small.model, small.calib, output=folder / "c.onnx", patch=path, **PLAIN | {"map": "bias"})
    tna_onnx.apply(small.model, path, output=folder / "honest.onnx")
    return path


@pytest.mark.parametrize("kind", ADAPTERS)
def test_no_tampered_adapter_is_applied(small: Small, adapter: Path, tmp_path: Path, kind: str) -> None:
    values, version = read_adapter(adapter)
    ADAPTERS[kind](values)
    path = tmp_path / "a.onnx_adapter"
    path.write_bytes(adapter_bytes(values, version))
    with pytest.raises(tna_onnx.DataError, match=r"a\.onnx_adapter: "):
        tna_onnx.apply(small.model, path, output=tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_a_patch_of_compressed_members_is_none(small: Small, patches: dict[str, bytes], tmp_path: Path) -> None:
    """A few bytes may unpack to any number of them."""
    stream = io.BytesIO()
    arrays, _ = _read_npz(patches["refitted"])
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array.tobytes())
    with pytest.raises(tna_onnx.DataError, match="compressed"):
        tna_onnx.apply(small.model, stream.getvalue(), output=tmp_path / "o.onnx")
