"""Patches and adapters that someone has changed: `apply` refuses them, and writes no file."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Small
from tna_onnx.pipeline.change import _seal, _text_of
from tna_onnx.pipeline.patch import _npz, _read_npz
from tna_onnx.runtime import adapter_bytes, read_adapter

Arrays = dict[str, np.ndarray]

SETTINGS: dict[str, dict[str, Any]] = {
    "folded": {"map": "ts"},
    "refitted": {"map": "refit"},
    "appended": {"map": "irova"},
}


@pytest.fixture(scope="module")
def patches(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a patch of each kind of change."""
    folder = tmp_path_factory.mktemp("patches")
    written = {}
    for kind, words in SETTINGS.items():
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
@pytest.mark.parametrize("kind", SETTINGS)
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


@pytest.mark.parametrize("kind", ADAPTERS)
def test_no_tampered_adapter_is_applied(small: Small, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.onnx_adapter"
    tna_onnx.calibrate(
        small.model, small.calib, output=tmp_path / "c.onnx", patch=path, map="bias", search="none", device="cpu"
    )
    values, version = read_adapter(path)
    tna_onnx.apply(small.model, path, output=tmp_path / "honest.onnx")
    ADAPTERS[kind](values)
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
