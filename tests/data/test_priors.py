"""Class frequencies as users state them (`read_prior`): what is taken, and what is refused with which words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tna_onnx.data.choices import Limits
from tna_onnx.data.sample_info import read_prior
from tna_onnx.errors import DataError

NAMES = ("cat", "cow", "dog")


def read(given: Any, names: Any = NAMES) -> list[float]:
    found: list[float] = read_prior(given, names, 3, "--target-prior", Limits()).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[0.5, 0.3, 0.2]"),
        ("a.json", '{"dog": 0.2, "cat": 0.5, "cow": 0.3}'),
        ("a.json", '{"2": 0.2, "0": 0.5, "1": 0.3}'),
        ("a.csv", "class,prior\ndog,0.2\ncat,0.5\ncow,0.3\n"),
    ],
)
def test_files(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name) == pytest.approx([0.5, 0.3, 0.2])


def test_values() -> None:
    assert read("uniform") == pytest.approx([1 / 3] * 3)
    assert read((0.5, 0.3, 0.2)) == pytest.approx([0.5, 0.3, 0.2])
    assert read(np.array([0.5, 0.3, 0.2], np.float32)) == pytest.approx([0.5, 0.3, 0.2])
    assert read({0: 0.5, 1: 0.3, 2: 0.2}, None) == pytest.approx([0.5, 0.3, 0.2])
    # rounded figures
    assert sum(read([0.333, 0.333, 0.333])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0.5, 0.5], "2 numbers for a model with 3 classes"),
        ([0.5, 0.6, -0.1], "class 2 has the frequency -0.1"),
        ([0.5, float("nan"), 0.5], "class 1 has the frequency nan"),
        ([0.5, float("inf"), 0.5], "class 1 has the frequency inf"),
        ([0.5, 0.5, 0.0], "class 2 has the frequency 0, which would rule it out"),
        ([0.5, 0.5, 1e-170], "class 2 has the frequency 1e-170, which would rule it out"),
        ([0.5, 0.3, 0.1], "add up to 0.9; expected 1"),
        ([50, 30, 20], "add up to 100; expected 1; if these are counts"),
        ({"cat": 0.5, "cow": 0.3, "horse": 0.2}, "unknown classes 'horse'"),
        ({"cat": 0.5, "cow": 0.5}, "no number for the classes 'dog'"),
        ([True, 0.5, 0.5], "expected numbers"),
        (["a", "b", "c"], "expected numbers"),
        (0.5, "expected numbers"),
    ],
)
def test_refusals(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words.replace("(", r"\(")):
        read(given)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", '"uniform"', "expected numbers"),
        ("a.csv", "prior\n0.5\n0.3\n0.2\n", "expected two columns"),
        ("a.csv", "class,prior\ncat,one\ndog,two", "expected a number, found 'one'"),
        ("a.csv", "class,prior\ncat,0.5\ncat,0.3\ndog,0.2", "class 'cat' has several lines"),
    ],
)
def test_files_that_hold_something_else(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_class_that_is_called_by_a_number_is_meant_by_its_name() -> None:
    assert read({"0": 0.2, "1": 0.3, "2": 0.5}, ("0", "2", "1")) == pytest.approx([0.2, 0.5, 0.3])


def test_a_key_that_occurs_twice(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"cat": 0.5, "dog": 0.3, "cow": 0.1, "dog": 0.2}')
    with pytest.raises(DataError, match="the key 'dog' occurs twice in one object; write it once"):
        read(tmp_path / "p.json")


def test_other_breaks_stay_in_a_name(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "class,prior\r\na\u2028b,0.5\r\nc\x85d,0.3\r\ne,0.2\r\n", encoding="utf-8", newline=""
    )
    assert read(tmp_path / "p.csv", ("a\u2028b", "c\x85d", "e")) == pytest.approx([0.5, 0.3, 0.2])
