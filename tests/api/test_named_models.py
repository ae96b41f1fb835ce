"""Names of models that are compared: as short as tells them apart, and the baseline found by each of its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.api.compare import named_models, position_of
from tna_onnx.errors import UsageError


def names(*paths: Any) -> list[str]:
    return [model.name for model in named_models(list(paths))]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.onnx", "b.onnx"], ["a.onnx", "b.onnx"]),
        (["one/m.onnx", "two/m.onnx", "n.onnx"], ["one/m.onnx", "two/m.onnx", "n.onnx"]),
        (["x/1/m.onnx", "y/1/m.onnx"], ["x/1/m.onnx", "y/1/m.onnx"]),
        (["m.onnx", Path("m.onnx")], ["m.onnx (1)", "m.onnx (2)"]),
        ([b"", b"", "m.onnx"], ["model in memory (1)", "model in memory (2)", "m.onnx"]),
    ],
)
def test_names_by_hand(paths: list[Any], expected: list[str]) -> None:
    assert names(*paths) == expected


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join), min_size=2, max_size=6))
def test_names_differ_and_end_their_paths(paths: list[str]) -> None:
    found = names(*paths)
    assert len(set(found)) == len(found)
    for path, name in zip(paths, found, strict=True):
        assert Path(path).absolute().as_posix().endswith(name.split(" (")[0])


def test_a_mapping_names_its_models() -> None:
    models = named_models({"old": "m.onnx", "new": b"bytes"})
    assert [(model.name, model.path) for model in models] == [("old", Path("m.onnx")), ("new", None)]


@pytest.mark.parametrize(
    ("baseline", "position"), [("old", 0), ("2", 2), (2, 2), ("m.onnx", 1), (1, 0), (str(Path("m.onnx").absolute()), 1)]
)
def test_a_name_comes_before_a_path_and_a_path_before_a_position(baseline: str | int, position: int) -> None:
    models = named_models({"old": b"", "new": "m.onnx", "2": b""})
    assert position_of(baseline, models) == position


@pytest.mark.parametrize("baseline", ["0", "4", -1, "other.onnx", "", "1.0"])
def test_a_baseline_that_is_none_of_them(baseline: str | int) -> None:
    with pytest.raises(UsageError, match="is none of the models; expected old, new, 2, or a position from 1 to 3"):
        position_of(baseline, named_models({"old": b"", "new": "m.onnx", "2": b""}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [([], "got 0"), (["a.onnx"], "got 1"), ({"a": "a.onnx"}, "got 1"), ("a.onnx", "got str"), (7, "got int")],
)
def test_one_model_is_not_enough(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named_models(wrong)
