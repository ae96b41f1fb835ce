"""Changes that the writer itself has written and no command makes, sealed: such a file is not proved."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import calibration_entries, small_model, tensor_info
from tests.conftest import Small
from tna_onnx.errors import DataError
from tna_onnx.graph.load import load_model
from tna_onnx.graph.nodes import annotate
from tna_onnx.graph.readers import OutputChange
from tna_onnx.graph.readout import Layout
from tna_onnx.graph.scores import find_readout
from tna_onnx.maps.clamp import clamped_fit
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.linear import Bias
from tna_onnx.maps.temperature import EnsembleTemperature, Temperature
from tna_onnx.maps.two_classes import Beta, LabelPlatt, LabelTemperature, Platt
from tna_onnx.pipeline.record import Added, Change, _seal, _text_of, prove, write_change

TS = Temperature(2.0)
NAN, INF = float("nan"), float("inf")
BIAS = np.array([0.0, 0, 90, 0, 0])
HALF = SmoothedIsotonic((((0.5,), (0.0,)),) * 3)


def _behind(*maps: Any, **words: Any) -> dict[str, Any]:
    return {"maps": maps, **words}


def _unchecked(fitted: LabelPlatt, intercepts: Any) -> LabelPlatt:
    """Return a map with intercepts that its constructor would refuse."""
    object.__setattr__(fitted, "intercepts", intercepts)
    return fitted


# What is forged, of which model (see `_source`).
FORGED: dict[str, dict[str, Any]] = {
    "shape of pairs": _behind(TS, shape=(7, 2)),
    "shape of a number": _behind(TS, shape=()),
    **{
        f"computed in {name}": _behind(TS, readout={"logits_type": name}) for name in ("float16", "float64", "bfloat16")
    },
    "folded in float16": {"folded": TS, "readout": {"logits_type": "float16"}},
    "of probabilities of one number": _behind(TS, readout={"holds": "probabilities", "binary": True}),
    "of fewer classes": _behind(Bias(2.0, BIAS[:4]), readout={"n_classes": 4}),
    "fewer functions": _behind(HALF),
    "map of two classes": _behind(Platt(1.0, 0.0)),
    "labels: fewer temperatures": _behind(LabelTemperature((2.0,) * 3)),
    "labels: of one class": _behind(TS, readout={"multi_label": False}),
    "a bias for each row": _behind(Bias(2.0, np.tile(BIAS, (4, 1)))),
    "keeps predictions of two classes": _behind(clamped_fit(Bias(2.0, BIAS), 2)),
    "labels: NaN in place of numbers": _behind(LabelPlatt((2.0,) * 5, (NAN,) * 5)),
    "labels: a text in place of numbers": _behind(_unchecked(LabelPlatt((2.0,) * 5, (0.0,) * 5), ("nan",) * 5)),
    "positions: one prediction": _behind(Bias(2.0, BIAS), shape=(5,)),
    "two: scores as labels": _behind(Bias(2.0, BIAS), other_outputs=OutputChange((), ("b",), (0, 1, 2, 3, 4))),
}

HONEST: dict[str, dict[str, Any]] = {
    "folded": {"folded": TS},
    "behind": _behind(TS),
    "predictions kept": _behind(clamped_fit(Bias(2.0, BIAS), 5)),
    "labels: predictions kept": _behind(clamped_fit(LabelPlatt((2.0,) * 5, (0.5,) * 5), 0)),
    "labels: behind": _behind(LabelPlatt((2.0,) * 5, (0.0,) * 5)),
    "binary: behind": _behind(Beta(1.0, 0.5, 0.0)),
    "two: likeliest label": _behind(Bias(2.0, BIAS), other_outputs=OutputChange((), ("label",), (0, 1, 2, 3, 4))),
    "positions: behind": _behind(Bias(2.0, BIAS), shape=Layout(4, 1)),
}


def _source(kind: str, small: Small, folder: Path) -> Path:
    """Return the small model; with a Sigmoid for `labels`, two classes for `binary`, a convolution for `positions`."""
    model = onnx.load(small.model)
    rng = np.random.default_rng(0)
    if kind == "labels":
        model.graph.node.append(helper.make_node("Sigmoid", ["logits"], ["p"], name="sigmoid"))
        model.graph.output[0].CopyFrom(tensor_info("p", ["N", 5]))
    elif kind == "binary":
        for tensor in model.graph.initializer[1:]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:2], tensor.name))
        model.graph.output[0].CopyFrom(tensor_info("logits", ["N", 2]))
    elif kind == "positions":
        conv = helper.make_node("Conv", ["x", "k", "b"], ["logits"], name="conv")
        values = {"k": rng.standard_normal((5, 4, 1, 1)).astype(np.float32), "b": np.zeros(5, np.float32)}
        model = small_model([conv], {"x": ["N", 4, 6, 7]}, {"logits": ["N", 5, 6, 7]}, values)
    elif kind == "two":
        values = {"w2": rng.standard_normal((3, 32)), "b2": rng.standard_normal(3)}
        model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items())
        model.graph.node.append(helper.make_node("Gemm", ["features", "w2", "b2"], ["b"], name="second", transB=1))
        model.graph.output.append(tensor_info("b", ["N", 3]))
        for name, scores in (("label", "logits"), ("other", "b")):
            model.graph.node.append(helper.make_node("ArgMax", [scores], [name], name=name, axis=1, keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["N"]))
    else:
        return small.model
    onnx.save(model, folder / "source.onnx")
    return folder / "source.onnx"


def _write(source: Path, forged: dict[str, Any], path: Path) -> None:
    """Write a change with the entries that a calibration of its map has."""
    model = load_model(source)
    readout = replace(find_readout(model, None, model.outputs[0], None), **forged.get("readout", {}))
    words = {"shape": (readout.n_classes,), **{key: value for key, value in forged.items() if key != "readout"}}
    fitted = words.get("folded") or words.get("maps", (None,))[-1]
    entries = calibration_entries(model, readout, getattr(fitted, "name", "none"), **getattr(fitted, "brief", {}))
    onnx.save(write_change(model, readout, Change(**words), entries).proto, path)


@pytest.mark.parametrize("kind", [*HONEST, *FORGED])
def test_an_honest_change_is_proved_and_one_that_no_calibration_makes_is_not(
    small: Small, tmp_path: Path, kind: str
) -> None:
    source = _source(kind.partition(":")[0], small, tmp_path)
    _write(source, (HONEST | FORGED)[kind], tmp_path / "o.onnx")
    options = tna_onnx.ModelOptions(output_name=load_model(source).outputs[0])
    found = tna_onnx.verify(source, tmp_path / "o.onnx", model_options=options)
    assert found.intact == (kind in HONEST), (found.reason, found.unexplained)
    assert "KeyError" not in found.reason  # of entries that were forgotten here


# --- entries of an honest file, sealed anew


def _sealed_anew(file: Path, entries: dict[str, str]) -> Path:
    """Write a file beside another one, with other entries and the seal of these."""
    proto = onnx.load(file)
    annotate(proto, {**entries, "seal": _seal(entries)})
    onnx.save(proto, file.with_name("forged.onnx"))
    return file.with_name("forged.onnx")


def _step(**values: Any) -> Callable[[dict[str, str]], None]:
    """Change words of the step."""

    def edit(entries: dict[str, str]) -> None:
        (step,) = json.loads(entries["change"])["steps"]
        entries["change"] = _text_of([{**step, **values}])

    return edit


def _text(edit: Callable[[str], str]) -> Callable[[dict[str, str]], None]:
    return lambda entries: entries.update(change=edit(entries["change"]))


ENTRIES: dict[str, Callable[[dict[str, str]], None]] = {
    "spaces": _text(lambda text: json.dumps(json.loads(text))),
    "a word twice": _text(lambda text: text.replace('"weight":false', '"weight":true,"weight":false')),
    "another order of words": _text(lambda text: _text_of([dict(sorted(json.loads(text)["steps"][0].items()))])),
    "steps that are none": _text(lambda text: '{"format":1,"steps":{}}'),
    "a number for a word": _step(weight=0),
    "more digests": _step(digests={"weight": "0", "bias": "0", "hidden": "0"}),
    "another node": _text(lambda text: text.replace('"node":"head"', '"node":"hidden"')),
    "a weight of its own": _text(lambda text: text.replace('"own_weight":false', '"own_weight":true')),
    "another class axis": _text(lambda text: text.replace('"class_axis":0', '"class_axis":1')),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_entries_that_state_something_else_are_not_intact(small: Small, tmp_path: Path, kind: str) -> None:
    _write(small.model, HONEST["folded"], tmp_path / "o.onnx")
    entries = load_model(tmp_path / "o.onnx").provenance
    before = dict(entries)
    ENTRIES[kind](entries)
    assert entries != before
    assert not tna_onnx.verify(small.model, _sealed_anew(tmp_path / "o.onnx", entries)).intact


def test_numbers_that_are_left_out_are_not_taken_from_the_file(small: Small, tmp_path: Path) -> None:
    _write(small.model, _behind(Bias(1.0, BIAS)), tmp_path / "o.onnx")
    entries = load_model(tmp_path / "o.onnx").provenance
    words = json.loads(entries["change"])
    del words["steps"][0]["maps"][0]["bias"]["values"]
    entries = {**entries, "change": _text_of(words["steps"])}
    proof = prove(load_model(small.model), load_model(_sealed_anew(tmp_path / "o.onnx", entries)))
    assert "words that this version" in proof.reason


def with_number(value: Any, number: int) -> Iterator[Any]:
    """Yield a JSON value with another number in place of each whole one in it."""
    if isinstance(value, int):
        yield number
    for key, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        for other in with_number(item, number):
            if isinstance(value, dict):
                yield {**value, key: other}
            else:
                yield [*value[:key], other, *value[key + 1 :]]


def require_little_memory(source: Path, file: Path, options: tna_onnx.ModelOptions | None = None) -> None:
    """Put a large number in place of each whole one in the record of a file: refused or not, it takes no memory."""
    entries = load_model(file).provenance
    proto = onnx.load(file)
    for changed in with_number(json.loads(entries["change"])["steps"], 4 * 10**8):
        forged = {**entries, "change": _text_of(changed)}
        annotate(proto, {**forged, "seal": _seal(forged)})
        tracemalloc.start()
        try:
            assert "MemoryError" not in tna_onnx.verify(source, proto, model_options=options).reason, changed
            assert tracemalloc.get_traced_memory()[1] < 2**26, changed
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("kind", ["predictions kept", "labels: behind", "positions: behind"])
def test_no_number_of_a_record_takes_memory(small: Small, tmp_path: Path, kind: str) -> None:
    source = _source(kind.partition(":")[0], small, tmp_path)
    _write(source, HONEST[kind], tmp_path / "o.onnx")
    options = tna_onnx.ModelOptions(output_name=load_model(source).outputs[0])
    require_little_memory(source, tmp_path / "o.onnx", options)


# --- numbers that no fit gives


@pytest.mark.parametrize(
    ("fitted", "values"),
    [
        *[(TS, {"temperature": value}) for value in (0.0, -1.0, NAN, INF)],
        *[(EnsembleTemperature(2.0, (0.5, 0.3, 0.2), 5), {"weights": w})
          for w in ((-1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.5, 0.5, 0.5), (INF, 0.0, 0.0))],
        *[(fitted, {"bias": BIAS + INF}) for fitted in (Bias(2.0, BIAS), Added(BIAS))],
        (Bias(2.0, BIAS), {"temperature": -2.0}),
        (Platt(1.0, 0.0), {"slope": -1.0}),
        (Beta(1.0, 1.0, 0.0), {"a": -1.0}),
        (LabelTemperature((2.0,) * 5), {"temperatures": (2.0, 0.0)}),
        (LabelPlatt((2.0,) * 5, (0.0,) * 5), {"slopes": (-2.0,) * 5}),
        (LabelPlatt((2.0,) * 5, (0.0,) * 5), {"intercepts": (INF,) * 5}),
    ],
)  # fmt: skip
def test_no_map_holds_numbers_that_none_fits(fitted: Any, values: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        replace(fitted, **values)


@pytest.mark.parametrize(
    ("stated", "other"),
    [
        *(('"temperature":2.0', f'"temperature":{number}') for number in ("-2.0", "0.0", "NaN", "Infinity")),
        # the same weight, and a map that may change the order of the classes
        ('"temperature":2.0', '"temperature":{"dtype":"float64","shape":[5],"values":[2.0,2.0,2.0,2.0,2.0]}'),
    ],
)
def test_a_record_of_numbers_that_none_fits_is_not_intact(
    small: Small, tmp_path: Path, stated: str, other: str
) -> None:
    _write(small.model, HONEST["folded"], tmp_path / "o.onnx")
    entries = load_model(tmp_path / "o.onnx").provenance
    assert stated in entries["change"]
    entries["change"] = entries["change"].replace(stated, other)
    found = tna_onnx.verify(small.model, _sealed_anew(tmp_path / "o.onnx", entries))
    assert not found.intact
    assert found.reason  # it is not made again at all
