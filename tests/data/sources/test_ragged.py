"""Lists of tokens of different lengths: padded with id 0 and masked, from every kind of table, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import spec, write_columns
from tna_onnx.data import open_source
from tna_onnx.errors import DataError

IDS = [[5], [6, 7, 8], [9, 10]]
MASK = [[1], [1, 1, 1], [1, 0]]
LABELS = [0, 1, 0]
PADDED = [[5, 0, 0], [6, 7, 8], [9, 10, 0]]
MODEL = [spec("input_ids", (None, None), "int64"), spec("attention_mask", (None, None), "int64")]


def mapping(_: Path, table: dict[str, Any]) -> Any:
    return table


def frame(_: Path, table: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(table)


def jsonl(folder: Path, table: dict[str, Any]) -> Any:
    return write_columns(folder / "d.jsonl", table)


def parquet(folder: Path, table: dict[str, Any]) -> Any:
    return write_columns(folder / "d.parquet", table)


FORMS = [mapping, jsonl, parquet, frame]


def arrays(source: Any) -> dict[str, Any]:
    (batch,) = source.batches(len(source))
    return {name: array.tolist() for name, array in batch.items()}


@pytest.mark.parametrize("form", FORMS)
def test_padded_and_masked(tmp_path: Path, form: Any) -> None:
    source: Any = open_source(form(tmp_path, {"input_ids": IDS, "label": LABELS}), MODEL, 2)
    assert arrays(source) == {"input_ids": PADDED, "attention_mask": [[1, 0, 0], [1, 1, 1], [1, 1, 0]]}
    (note,) = source.notes
    assert note.startswith("lists of 'input_ids' padded with id 0 at their end to 3 tokens; the mask is made of")
    assert source.labels.tolist() == LABELS


@pytest.mark.parametrize("form", FORMS)
def test_a_mask_that_is_there_is_kept(tmp_path: Path, form: Any) -> None:
    data = form(tmp_path, {"input_ids": IDS, "attention_mask": MASK, "label": LABELS})
    source: Any = open_source(data, MODEL, 2)
    assert arrays(source) == {"input_ids": PADDED, "attention_mask": [[1, 0, 0], [1, 1, 1], [1, 0, 0]]}


def test_lists_of_one_length_stay_as_they_are(tmp_path: Path) -> None:
    table = {"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1], [1, 0]], "labels": [0, 1]}
    for form in FORMS:
        source: Any = open_source(form(tmp_path, table), MODEL, 2)
        assert arrays(source)["input_ids"] == [[1, 2], [3, 4]]
        assert not any("padded" in note for note in getattr(source, "notes", ()))


@pytest.mark.parametrize("form", FORMS)
def test_to_the_length_of_the_model_or_refused(tmp_path: Path, form: Any) -> None:
    five = [spec("input_ids", (None, 5), "int64"), spec("attention_mask", (None, 5), "int64")]
    data = form(tmp_path, {"input_ids": IDS, "label": LABELS})
    assert np.shape(arrays(open_source(data, five, 2))["input_ids"]) == (3, 5)
    two = [spec("input_ids", (None, 2), "int64"), spec("attention_mask", (None, 2), "int64")]
    with pytest.raises(DataError, match="'input_ids': 3 tokens in row 1, and the model takes 2"):
        open_source(data, two, 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_ids": [[5], [], [9, 10]]}, "expected a list of token ids in row 1"),
        ({"input_ids": [[5], [6.5, 7, 8], [9, 10]]}, "expected a list of 3 integers in row 1"),
        ({"attention_mask": [[1], [1, 1], [1, 1]]}, "'attention_mask': expected a list of 3 integers in row 1"),
        ({"input_ids": [[5], [2**40, 7, 8], [9, 10]]}, "row 1 does not fit into int32"),
    ],
)
def test_what_cannot_be_padded_is_refused(wrong: dict[str, Any], message: str) -> None:
    model = [spec("input_ids", (None, None), "int32"), spec("attention_mask", (None, None), "int32")]
    table = {"input_ids": IDS, "attention_mask": MASK, "label": LABELS, **wrong}
    with pytest.raises(DataError, match=message):
        open_source(pytest.importorskip("pandas").DataFrame(table), model, 2)


def test_without_a_mask_nothing_is_padded(tmp_path: Path) -> None:
    """The id that such a model was trained to skip is not known."""
    for form in FORMS:
        with pytest.raises(DataError, match="pad or cut"):
            open_source(form(tmp_path, {"input_ids": IDS, "label": LABELS}), MODEL[:1], 2)
