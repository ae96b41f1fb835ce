"""Guarded files that the writer itself has written, or whose entries are sealed anew."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import guard
from tests.pipeline.test_forged_changes import require_little_memory
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.decisions import Guarded, SetScore
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.nodes import annotate
from tna_onnx.guarding import guard as guarding
from tna_onnx.pipeline.checking import checked_file
from tna_onnx.pipeline.record import _seal, _text_of, prove, write_decisions
from tna_onnx.runtime import Device, Session, open_session

FILES: dict[str, dict[str, Any]] = {
    "all": {"add": ("confidence", "accept", "set", "ood"), "risk": 30.0, "coverage": 80.0},
    "two": {"add": ("accept", "set"), "risk": 30.0, "coverage": 80.0},
    "one class": {"decide": "f1", "positive": "2"},
    "ratio": {"decide": "macro-f1"},
    "raps": {"add": ("set",), "set_score": "raps", "allow_empty": True},
    "by class": {"add": ("set",), "per_class": True, "coverage": 60.0},
    "energy": {"add": ("ood",), "ood_score": "energy"},
}

Float = np.float32


@pytest.fixture(scope="module")
def files(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file of each kind."""
    folder = tmp_path_factory.mktemp("stated")
    for kind, words in FILES.items():
        guard(small.model, small.calib, folder / f"{kind}.onnx", **words)
    return {kind: folder / f"{kind}.onnx" for kind in FILES}


@pytest.mark.parametrize("kind", FILES)
def test_the_files_themselves_are_intact(small: Small, files: dict[str, Path], kind: str) -> None:
    found = tna_onnx.verify(small.model, files[kind])
    assert found.intact, (found.reason, found.unexplained)


# output of a guarded file -> what its values become, and the complaint
_COMPLAINT = "output {} of the written file disagrees with its scores for"
OTHERWISE = {
    **{name: ("Neg", _COMPLAINT.format(name)) for name in ("confidence", "ood", "decision")},
    **{name: ("Not", _COMPLAINT.format(name)) for name in ("accept", "set", "ood_alarm")},
    "logits": ("Neg", r"output 'logits' changed by \d.*; expected no change"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_file_that_runs_otherwise_than_its_scores_gets_no_name(
    small: Small, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_type, complaint = OTHERWISE[name]

    @contextlib.contextmanager
    def opened(model: Model, proto: onnx.ModelProto, target: Path, device: Device) -> Iterator[tuple[Path, Session]]:
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        place, maker = next((k, node) for k, node in enumerate(other.graph.node) if name in node.output)
        maker.output[:] = ["before" if output == name else output for output in maker.output]
        other.graph.node.insert(place + 1, helper.make_node(op_type, ["before"], [name]))
        with checked_file(model, proto, target, device) as (path, _):
            yield path, open_session(other.SerializeToString(), path.name, device)

    monkeypatch.setattr(guarding, "checked_file", opened)
    with pytest.raises(CheckFailed, match=complaint):
        guard(small.model, small.calib, tmp_path / "o.onnx", **FILES["all"], decide="macro-f1")
    assert not list(tmp_path.iterdir())


def _with_twice(text: str, source: str | None = None) -> str:
    change = json.loads(text)
    (step,) = change["steps"]
    return _text_of([{**step, "source": source or step["source"]}, step])


def _forged(file: Path, path: Path, edit: Callable[[dict[str, str]], Any]) -> Path:
    """Edit the entries of a file, and seal them anew."""
    proto, entries = onnx.load(file), load_model(file).provenance
    edit(entries)
    annotate(proto, {**entries, "seal": _seal(entries)})
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("source", [None, "3" * 64], ids=["another step", "a step before"])
def test_steps_that_were_not_made_are_not_intact(
    small: Small, files: dict[str, Path], tmp_path: Path, source: str | None
) -> None:
    path = _forged(
        files["all"], tmp_path / "f.onnx", lambda entries: entries.update(change=_with_twice(entries["change"], source))
    )
    assert not tna_onnx.verify(small.model, path).intact


@pytest.mark.parametrize(
    "edit",
    [
        lambda entries: entries.pop("guard"),
        lambda entries: entries.pop("guard_decision"),
        lambda entries: entries.update(guard_decision="[1]"),
        lambda entries: entries.update(guard_decision='{"by_hand": 1}'),
        lambda entries: entries.update(guard_decision='{"by_hand": [1]}'),
        lambda entries: entries.update(guard_decision='{"thresholds": [{}]}'),
    ],
    ids=["no settings", "no decision", "a list", "a number", "a number of a class", "no name of a class"],
)
def test_a_decision_that_is_stated_otherwise_is_not_edited(
    files: dict[str, Path], tmp_path: Path, edit: Callable[[dict[str, str]], Any]
) -> None:
    path = _forged(files["one class"], tmp_path / "f.onnx", edit)
    with pytest.raises(tna_onnx.UnsupportedModel):
        tna_onnx.edit_decision(path, {"2": 0.5}, output=tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def _output(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, output=replace(guarded.output, **values))


def _outlier(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: replace(guarded, outlier=replace(guarded.outlier, **values))  # type: ignore[type-var]


def _formula(**values: Any) -> Callable[[Guarded], Guarded]:
    return lambda guarded: _outlier(formula=replace(guarded.outlier.formula, **values))(guarded)  # type: ignore


WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a threshold for each sample": ("two", {"thresholds": {"accept": np.zeros((200, 1), Float)}}),
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
    entries = {key: value for key, value in load_model(files[file]).provenance.items() if key not in ("change", "seal")}
    guarded = forged.get("guarded", lambda each: each)(made.guarded)
    thresholds = {**made.thresholds, **forged.get("thresholds", {})}
    step = replace(made, model=source, guarded=guarded, thresholds=thresholds)
    onnx.save(write_decisions(step, entries), tmp_path / "forged.onnx")
    assert not tna_onnx.verify(small.model, tmp_path / "forged.onnx").intact


def test_a_record_of_another_version_is_refused_by_the_name_of_its_field(
    small: Small, files: dict[str, Path], tmp_path: Path
) -> None:
    def edit(entries: dict[str, str]) -> None:
        steps = json.loads(entries["change"])["steps"]
        steps[0]["guarded"]["set_score"]["temperature"] = 1.0
        entries["change"] = _text_of(steps)

    found = tna_onnx.verify(small.model, _forged(files["two"], tmp_path / "f.onnx", edit))
    assert not found.intact
    assert "temperature" in found.reason
    assert "Error" not in found.reason


@pytest.mark.parametrize("kind", ["raps", "one class"])
def test_no_number_of_a_record_takes_memory(small: Small, files: dict[str, Path], kind: str) -> None:
    require_little_memory(small.model, files[kind])


@pytest.mark.parametrize("values", [{"name": "apx"}, {"weight": -1.0}, {"weight": np.nan}, {"weight": np.inf}])
def test_no_set_score_holds_numbers_that_none_fits(values: dict[str, Any]) -> None:
    with pytest.raises(tna_onnx.DataError):
        SetScore(**values)
