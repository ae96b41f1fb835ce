"""`guard --decide roll-up=FILE`: the class, or the group of the first level that is sure enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from scipy.special import softmax

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import run
from tests.pipeline.test_label_models import model as label_model
from tests.pipeline.test_label_models import samples
from tests.support import cli
from tna_onnx.errors import DataError, UsageError

TEXT = "class,group,all\n0,a,x\n2,a,x\n1,b,x\n3,b,x\n4,b,x\n"
GROUP = np.array([5, 6, 5, 6, 6])


def guarded(small: Small, folder: Path, text: str = TEXT, **words: Any) -> tna_onnx.Guard:
    (folder / "groups.csv").write_text(text, "utf-8")
    words = {"risk": 12.0, "output": folder / "g.onnx", "device": "cpu", **words}
    return tna_onnx.guard(small.model, small.calib, decide=f"roll-up={folder / 'groups.csv'}", **words)


@pytest.mark.parametrize("dials", [False, True])
def test_files_answer_with_the_first_level_that_is_sure_enough(
    small: Small, data: dict[str, np.ndarray], tmp_path: Path, dials: bool
) -> None:
    result = guarded(small, tmp_path, eval=small.test, dials=dials)
    path = tmp_path / "g.onnx"
    onnx.checker.check_model(path, full_check=True)
    assert tna_onnx.verify(small.model, path).intact
    decided = run(path, data["new"])["decision"]
    p = softmax(run(small.model, data["new"])["logits"].astype(np.float64), axis=1)
    (t,) = (output.threshold for output in result.outputs)
    b = p[:, [1, 3, 4]].sum(axis=1)
    groups = np.stack([1 - b, b], axis=1)
    expected = np.where(groups.max(axis=1) >= t[1], 5 + groups.argmax(axis=1), 7)
    expected = np.where(p.max(axis=1) >= t[0], p.argmax(axis=1), expected)
    # a float32 softmax lies so close to a threshold for one sample or two
    assert decided.dtype == np.int64
    assert np.count_nonzero(decided != expected) <= 2
    assert min(np.sum(decided < 5), np.sum((decided == 5) | (decided == 6)), np.sum(decided == 7)) > 20
    (by_reference,) = ReferenceEvaluator(str(path)).run(["decision"], {"x": data["new"]})
    assert np.count_nonzero(by_reference != decided) <= 2
    assert (run(path, np.full((2, 8), np.nan, np.float32))["decision"] == -1).all()


def test_answers_are_counted_by_level(small: Small, tmp_path: Path) -> None:
    result = guarded(small, tmp_path, eval=small.test)
    with np.load(small.test) as stored:
        x, labels = stored["x"], stored["labels"]
    decided = run(tmp_path / "g.onnx", x)["decision"]
    evaluated = tna_onnx.evaluate(tmp_path / "g.onnx", small.test, device="cpu").decisions
    for decisions in (result.decisions, evaluated):
        assert decisions is not None
        assert decisions.decision is not None
        levels = decisions.decision.levels
        assert [level.name for level in levels] == ["class", "group", "all"]
        truth = np.stack([labels, GROUP[labels], np.full_like(labels, 7)])
        for level, true, (low, high) in zip(levels, truth, [(0, 5), (5, 7), (7, 8)], strict=True):
            at = (decided >= low) & (decided < high)
            assert level.answered == pytest.approx(at.mean())
            assert level.wrong == pytest.approx(np.mean(decided[at] != true[at]))
        assert decisions.decision.undecided == pytest.approx(np.mean(decided >= 5))
        assert decisions.decision.confusion is not None
        assert sum(map(sum, decisions.decision.confusion)) == len(labels)


def test_thresholds_of_levels_are_set_and_the_decision_is_removed(
    small: Small, data: dict[str, np.ndarray], tmp_path: Path
) -> None:
    guarded(small, tmp_path)
    edited = tna_onnx.edit_decision(tmp_path / "g.onnx", {"class": 0, "1": 0.5}, output=tmp_path / "e.onnx")
    assert tna_onnx.verify(small.model, tmp_path / "e.onnx").intact
    found = run(tmp_path / "e.onnx", data["new"])
    np.testing.assert_array_equal(found["decision"], found["logits"].argmax(axis=1))
    said = json.loads(edited.provenance["guard_decision"])
    assert said["by_hand"] == ["class", "group"]
    assert "delta" not in said
    tna_onnx.edit_decision(tmp_path / "e.onnx", None, output=tmp_path / "f.onnx")
    assert (tmp_path / "f.onnx").read_bytes() == small.model.read_bytes()


def test_a_level_that_cannot_promise_is_never_answered(small: Small, tmp_path: Path) -> None:
    result = guarded(small, tmp_path, risk=0.1)
    (output,) = result.outputs
    assert output.threshold == (2.0, 2.0, 0.0)
    assert sum("no answer is a" in note for note in result.notes) == 2
    with pytest.raises(DataError, match="no answer is a class"):
        guarded(small, tmp_path, TEXT.replace(",all", "").replace(",x", ""), risk=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,group\n0,a\n1,a\n2,b\n3,b", "a row that names the levels, and one for each of the classes"),
        ("class,group\n0,a\n1,a\n2,b\n3,b\n4,", "at each level"),
        ("class\n0\n1\n2\n3\n4", "at least one level of groups"),
        ("class,genus,family\n0,a,x\n1,a,y\n2,b,y\n3,b,y\n4,b,y", "one genus is in several groups of the level family"),
        ("", "a row that names the levels"),
    ],
)
def test_groups_have_to_be_of_all_classes(small: Small, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        guarded(small, tmp_path, text)


def test_what_cannot_be_rolled_up_is_refused(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        tna_onnx.guard(small.model, small.calib, dry_run=True, decide="roll-up=missing.csv")
    for words in ({"positive": "1"}, {"positive": "1", "per_class": True}):
        with pytest.raises(UsageError, match="leave it out"):
            guarded(small, tmp_path, **words)
    onnx.save(label_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "labels.npz", **samples(100, 1))
    result = cli(
        "guard", tmp_path / "m.onnx", tmp_path / "labels.npz", "--decide", f"roll-up={tmp_path / 'groups.csv'}"
    )
    assert result.exit_code == 2
    assert "one class a sample" in result.output
