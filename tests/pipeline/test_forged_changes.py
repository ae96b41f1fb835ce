"""Changes that the writer itself has written, of maps that no fit gives: such a file is not proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import Small
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import find_readout
from tna_onnx.maps.ensemble_temperature import EnsembleTemperature
from tna_onnx.maps.platt import Platt
from tna_onnx.maps.temperature import Temperature
from tna_onnx.pipeline.change import Added, Change, prove, write_change

FORGED: dict[str, dict[str, Any]] = {
    "logits turned round": {"folded": Temperature(-1.0)},
    "logits turned round behind": {"maps": (Temperature(-1.0),)},
    "no number": {"maps": (Temperature(float("nan")),)},
    "infinite": {"maps": (Temperature(float("inf")),)},
    "negative weight": {"maps": (EnsembleTemperature(2.0, (-1.0, 0.0, 0.0), 5),)},
    "negative slope": {"maps": (Platt(-1.0, 0.0),)},
    "order that is not kept": {"maps": (Added(np.array([0.0, 0, 90, 0, 0])),), "keeps_order": True},
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
        onnx.save(write_change(source, readout, change, {}).proto, tmp_path / "o.onnx")
        proof = prove(source, load_model(tmp_path / "o.onnx"))
        assert proof.intact, proof.reason
