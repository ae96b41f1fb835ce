"""Guarded files that the writer itself has written, or whose entries are sealed anew: what they state is proved."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.pipeline.test_forged_changes import require_little_memory
from tests.support import with_options
from tna_onnx.graph.decisions import Guarded, SetScore
from tna_onnx.graph.load import load_model
from tna_onnx.graph.nodes import annotate, provenance
from tna_onnx.pipeline.record import _seal, _text_of, prove, write_decisions

FILES: dict[str, dict[str, Any]] = {
    "all": {"add": ("confidence", "accept", "set", "ood"), "risk": 30.0, "coverage": 80.0},
    "two": {"add": ("accept", "set"), "risk": 30.0, "coverage": 80.0},
    "one class": {"decide": "f1", "positive": "2"},
    "ratio": {"decide": "macro-f1"},
    "raps": {"add": ("set",), "set_score": "raps", "set_temperature": "auto", "allow_empty": True},
    "by class": {"add": ("set",), "per_class": True, "coverage": 60.0},
    "energy": {"add": ("ood",), "ood_score": "energy"},
}

Float = np.float32


@pytest.fixture(scope="module")
def files(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file of each kind."""
    folder = tmp_path_factory.mktemp("stated")
    for kind, words in FILES.items():
        with_options(tna_onnx.guard, small.model, small.calib, output=folder / f"{kind}.onnx", device="cpu", **words)
    return {kind: folder / f"{kind}.onnx" for kind in FILES}


@pytest.mark.parametrize("kind", FILES)
def test_the_files_themselves_are_intact(small: Small, files: dict[str, Path], kind: str) -> None:
    found = tna_onnx.verify(small.model, files[kind])
    assert found.intact, (found.reason, found.unexplained)


def _in(key: str, **values: Any) -> Callable[[dict[str, str]], None]:
    """Change values of an entry that holds JSON."""
    return lambda entries: entries.update({key: json.dumps({**json.loads(entries[key]), **values})})


ENTRIES: dict[str, tuple[str, Callable[[dict[str, str]], Any]]] = {
    "a word that no setting has": ("all", _in("guard", other=1)),
    "no settings": ("all", lambda entries: entries.pop("guard")),
    "other source": ("all", lambda entries: entries.update(guard_source_sha256="4" * 64)),
    "other goal": ("one class", _in("guard", decide="mcc")),
    "other certainty": ("one class", _in("guard_decision", delta=0.5)),
    "threshold of another class": ("one class", _in("guard_decision", thresholds={"3": 0.5})),
    "no thresholds": ("ratio", _in("guard_decision", thresholds={})),
    "other rule": ("ratio", _in("guard_decision", rule="sure")),
    "decision gone": ("one class", lambda entries: entries.pop("guard_decision")),
    "fitted temperature": ("raps", lambda entries: entries.update(guard_set_temperature="7.0")),
    "free classes": ("raps", lambda entries: entries.update(guard_set_free_classes="4")),
    "a word that this version has not": ("all", lambda entries: entries.update(guard_other="1")),
    "another step": ("all", lambda entries: entries.update(change=_with_twice(entries["change"]))),
    "a step before": ("all", lambda entries: entries.update(change=_with_twice(entries["change"], "3" * 64))),
}


def _with_twice(text: str, source: str | None = None) -> str:
    change = json.loads(text)
    (step,) = change["steps"]
    return _text_of([{**step, "source": source or step["source"]}, step])


def _intact(small: Small, proto: onnx.ModelProto, entries: dict[str, str], path: Path) -> bool:
    annotate(proto, {**entries, "seal": _seal(entries)})
    onnx.save(proto, path)
    return tna_onnx.verify(small.model, path).intact


@pytest.mark.parametrize("kind", ENTRIES)
def test_entries_that_state_something_else_are_not_intact(
    small: Small, files: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    file, edit = ENTRIES[kind]
    proto, entries = onnx.load(files[file]), provenance(load_model(files[file]))
    edit(entries)
    assert not _intact(small, proto, entries, tmp_path / "forged.onnx")
    with pytest.raises(tna_onnx.UnsupportedModel):  # nor can its decision be changed
        tna_onnx.edit_decision(tmp_path / "forged.onnx", {"0": 0.5}, output=tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def _sets(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, set_score=replace(guarded.set_score, **values))  # type: ignore[type-var]


def _rule(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, decision=replace(guarded.decision, **values))  # type: ignore[type-var]


def _output(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, output=replace(guarded.output, **values))


def _outlier(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, outlier=replace(guarded.outlier, **values))  # type: ignore[type-var]


def _formula(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: _outlier(formula=replace(guarded.outlier.formula, **values))(guarded)  # type: ignore


WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "other free classes": ("raps", {"guarded": _sets(free=4)}),
    "outputs exchanged": ("two", {"names": {"accept": "set", "set": "accept"}}),
    "outputs in another order": ("two", {"names": {"set": "set", "accept": "accept"}}),
    "decides otherwise": ("one class", {"thresholds": {"decision": np.array(0.99, Float)}}),
    "decides on another class": ("one class", {"guarded": _rule(positive=1)}),
    "a threshold for each sample": ("two", {"thresholds": {"accept": np.zeros((200, 1), Float)}}),
    "costs of a goal without": ("ratio", {"guarded": _rule(cost=np.eye(5, dtype=Float))}),
    "costs of other decisions": ("ratio", {"guarded": _rule(cost=np.ones((5, 9), Float))}),
    "a center for each sample": ("all", {"guarded": _formula(center=np.zeros((7, 32)))}),
    "another meaning": ("two", {"guarded": _output(kind="log_probabilities")}),
    "fewer classes": ("two", {"guarded": _output(n_classes=4)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_decisions_that_the_writer_writes_and_no_command_makes_are_not_intact(
    small: Small, files: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    file, forged = WRITTEN[kind]
    source = load_model(small.model)
    made = prove(source, load_model(files[file])).decisions
    entries = {
        key: value for key, value in provenance(load_model(files[file])).items() if key not in ("change", "seal")
    }
    guarded = forged.get("guarded", lambda each: each)(made.guarded)
    thresholds = {**made.thresholds, **forged.get("thresholds", {})}
    entries |= forged.get("entries", {})
    names = forged.get("names", made.names)
    step = replace(made, model=source, guarded=guarded, thresholds=thresholds, names=names)
    onnx.save(write_decisions(step, entries), tmp_path / "forged.onnx")
    assert not tna_onnx.verify(small.model, tmp_path / "forged.onnx").intact


@pytest.mark.parametrize("kind", ["raps", "one class"])
def test_no_number_of_a_record_takes_memory(small: Small, files: dict[str, Path], kind: str) -> None:
    require_little_memory(small.model, files[kind])


@pytest.mark.parametrize(
    "values", [{"name": "apx"}, {"temperature": -1.0}, {"temperature": np.nan}, {"weight": np.inf}]
)
def test_no_set_score_holds_numbers_that_none_fits(values: dict[str, Any]) -> None:
    with pytest.raises(tna_onnx.DataError):
        SetScore(**values)
