"""Changes that the writer itself has written, of maps that no fit gives: such a file is not proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.builders import calibration_entries
from tests.conftest import Small
from tna_onnx.graph.load import load_model
from tna_onnx.graph.nodes import annotate, provenance
from tna_onnx.graph.scores import find_readout
from tna_onnx.maps.temperature import EnsembleTemperature, Temperature
from tna_onnx.maps.two_classes import Platt
from tna_onnx.pipeline.change import _seal, prove, write_change
from tna_onnx.pipeline.steps import Added, Change, OriginalClass

FORGED: dict[str, dict[str, Any]] = {
    "logits turned round": {"folded": Temperature(-1.0)},
    "logits turned round behind": {"maps": (Temperature(-1.0),)},
    "no number": {"maps": (Temperature(float("nan")),)},
    "infinite": {"maps": (Temperature(float("inf")),)},
    "negative weight": {"maps": (EnsembleTemperature(2.0, (-1.0, 0.0, 0.0), 5),)},
    "negative slope": {"maps": (Platt(-1.0, 0.0),)},
    "order that is not kept": {"maps": (Added(np.array([0.0, 0, 90, 0, 0])),), "keeps_order": True},
    "hardly a number": {"maps": (Temperature(1e300),)},
    "no distribution": {"maps": (EnsembleTemperature(2.0, (0.0, 0.0, 0.0), 5),)},
    "one distribution for all": {"maps": (EnsembleTemperature(2.0, (0.0, 0.0, 1.0), 5),)},
    "infinite bias": {"maps": (Added(np.array([0.0, 0, np.inf, 0, 0])),), "keeps_order": False},
    "negative factor of the bias": {"folded": None, "bias_factor": -1e6},
    "class of the input behind a map": {"maps": (Temperature(2.0), OriginalClass(), Temperature(1.0))},
    "class of the input behind a folded map": {"folded": Temperature(2.0), "maps": (OriginalClass(), Temperature(1.0))},
    "class of the input under another name": {"maps": (OriginalClass("accept"), Temperature(1.0))},
    "values that are no numbers": {"maps": (Added(np.full(5, np.nan)),)},
}


@pytest.mark.parametrize("kind", FORGED)
def test_it_is_not_proved(small: Small, tmp_path: Path, kind: str) -> None:
    source = load_model(small.model)
    readout = find_readout(source, None, None, None)
    change = Change(shape=(5,), **FORGED[kind])
    written = write_change(source, readout, change, {"map": json.dumps("ts")})
    onnx.save(written.proto, tmp_path / "forged.onnx")
    proof = prove(source, load_model(tmp_path / "forged.onnx"))
    assert not proof.intact
    assert proof.reason


def test_an_honest_change_is_proved(small: Small, tmp_path: Path) -> None:
    source = load_model(small.model)
    readout = find_readout(source, None, None, None)
    for change in (Change(folded=Temperature(2.0)), Change(maps=(Temperature(2.0),), keeps_order=True, shape=(5,))):
        entries = calibration_entries(source, readout, "ts", temperature=2.0)
        onnx.save(write_change(source, readout, change, entries).proto, tmp_path / "o.onnx")
        proof = prove(source, load_model(tmp_path / "o.onnx"))
        assert proof.intact, proof.reason


def test_numbers_that_are_left_out_are_not_taken_from_the_file(small: Small, tmp_path: Path) -> None:
    source = load_model(small.model)
    readout = find_readout(source, None, None, None)
    change = Change(maps=(Added(np.array([0.0, 0, 9, 0, 0])),), keeps_order=False, shape=(5,))
    proto = write_change(source, readout, change, {}).proto
    onnx.save(proto, tmp_path / "o.onnx")
    entries = provenance(load_model(tmp_path / "o.onnx"))
    words = json.loads(entries["change"])
    del words["steps"][0]["maps"][0]["bias"]["values"]
    entries = {**entries, "change": json.dumps(words)}
    annotate(proto, {**entries, "seal": _seal(entries)})
    onnx.save(proto, tmp_path / "forged.onnx")
    proof = prove(source, load_model(tmp_path / "forged.onnx"))
    assert not proof.intact
    assert "words that this version" in proof.reason
