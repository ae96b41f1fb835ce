"""Text as tokens: which column, which input, padding and cutting, and every refusal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, open_source, spec, write_columns
from tna_onnx.data.source import NO_LABELS, InputSpec, Source
from tna_onnx.errors import DataError, UsageError

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["good film", "bad bad film", "good", "a film , not good", "bad", "film"]
LABELS = [0, 1, 0, 1, 1, 0]
WORDS = {"[PAD]": 3, "[UNK]": 0, "good": 1, "bad": 2, "film": 4, "[CLS]": 5, "[SEP]": 6}
NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 5), ("[SEP]", 6)]
    )
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def inputs(*names: str, length: int | None = None) -> list[InputSpec]:
    return [spec(name, (None, length), np.int64) for name in names or NAMES]


def table(folder: Path, suffix: str = "jsonl", labels: list[Any] = LABELS, **columns: list[Any]) -> Path:
    return write_columns(folder.parent / f"reviews.{suffix}", {**(columns or {"text": TEXTS}), "label": labels})


def opened(data: Any, folder: Path, *wanted: InputSpec, **options: Any) -> Source:
    return open_source(data, wanted or inputs(), 2, tokenizer=folder, **options)


def expected(length: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.full((6, length), 3)
    mask = np.zeros((6, length), np.int64)
    for row, text in enumerate(TEXTS):
        tokens = [*[5, *(WORDS.get(word, 0) for word in text.split())][: length - 1], 6]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


def test_ids_mask_and_types(folder: Path) -> None:
    source = opened(table(folder), folder)
    joined = gather(source, 4)
    ids, mask = expected(7)
    np.testing.assert_array_equal(joined["input_ids"], ids, strict=True)
    np.testing.assert_array_equal(joined["attention_mask"], mask, strict=True)
    assert not joined["token_type_ids"].any()
    assert source.labels.tolist() == LABELS
    (note,) = source.notes  # type: ignore[attr-defined]
    assert note == f"text of 'text' tokenised by {folder}, padded with id 3 to 7 tokens"


def test_the_same_text_in_every_table(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {"id": [*range(6)], "text": TEXTS}
    quoted = table(folder, "csv", id=columns["id"], text=[f'"{text}"' for text in TEXTS])
    for data in (quoted, table(folder, "parquet", **columns), pa.table({**columns, "label": LABELS})):
        source = opened(data, folder / "tokenizer.json", *inputs("tokens"))
        np.testing.assert_array_equal(gather(source, 4)["tokens"], expected(7)[0])


def test_cut_and_padded_to_what_the_model_takes(folder: Path) -> None:
    source = opened(table(folder), folder, *inputs(*NAMES, length=4))
    np.testing.assert_array_equal(gather(source, 4)["input_ids"], expected(4)[0])
    assert source.notes[0].endswith("; 2 samples cut at 4 tokens")  # type: ignore[attr-defined]
    assert gather(opened(table(folder), folder, *inputs(*NAMES, length=9)), 4)["input_ids"].shape == (6, 9)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 5}')
    assert gather(opened(table(folder), folder), 4)["input_ids"].shape == (6, 5)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert gather(opened(table(folder), folder), 4)["input_ids"].shape == (6, 7)
    (folder / "config.json").write_text('{"max_position_embeddings": 6}')
    assert gather(opened(table(folder), folder), 4)["input_ids"].shape == (6, 6)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_labels_in_words_that_are_not_read_are_no_text(folder: Path, suffix: str) -> None:
    """Of samples whose labels come from elsewhere, or are not to be known."""
    path = table(folder, suffix, [("ham", "spam")[label] for label in LABELS], sms=TEXTS)
    ids = gather(opened(path, folder), 4)["input_ids"]
    for labels in (NO_LABELS, LABELS):
        np.testing.assert_array_equal(gather(opened(path, folder, labels=labels), 4)["input_ids"], ids)


def test_pairs_of_columns_that_are_named(folder: Path) -> None:
    data = table(folder, first=["good"] * 6, second=["bad"] * 6)
    joined = gather(opened(data, folder, columns=["first", "second"]), 4)
    assert joined["input_ids"][0].tolist() == [5, 1, 6, 2, 6]
    assert joined["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(DataError, match="expected one column of text, found 'first', 'second'; name it with --columns"):
        opened(data, folder)


def test_refusals(folder: Path) -> None:
    data = table(folder)
    with pytest.raises(DataError, match=r"column 'text' holds text.*--tokenizer FOLDER"):
        open_source(data, inputs("input_ids"), 2)
    with pytest.raises(DataError, match=r"no column for the model's input 'input_ids'.*--tokenizer FOLDER"):
        open_source(data, inputs(), 2)
    with pytest.raises(DataError, match="text needs a model that takes token ids"):
        opened(data, folder, spec("X", (None, 4)))
    with pytest.raises(DataError, match="names 'nothing'; expected one column of text"):
        opened(data, folder, columns=["nothing"])
    with pytest.raises(DataError, match="column 'text': expected text, found None in row 1"):
        opened(table(folder, text=["a", None, *TEXTS[2:]], other=TEXTS), folder, columns=["text"])
    table(folder)
    with pytest.raises(UsageError, match=r"no such file; give the folder of a tokenizer\.json"):
        opened(data, folder.parent)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        opened(data, folder)


def test_the_side_of_cuts_and_padding_is_the_tokenizers(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    before = opened(table(folder), folder, *inputs("input_ids", "attention_mask", length=4)).digest()
    tokenizer.enable_truncation(4, direction="left")
    tokenizer.enable_padding(direction="left", pad_id=3)
    tokenizer.save(str(folder / "tokenizer.json"))
    source = opened(table(folder), folder, *inputs("input_ids", "attention_mask", length=4))
    joined = gather(source, 6)
    assert joined["input_ids"].tolist() == [one.ids for one in tokenizer.encode_batch(TEXTS)]
    assert "padded with id 3 on the left" in source.notes[0]  # type: ignore[attr-defined]
    assert source.digest() != before  # a feature store of other tokens is not this one's


def test_a_length_that_holds_no_token(folder: Path) -> None:
    with pytest.raises(DataError, match="7 tokens after cutting, the model takes 1"):
        opened(table(folder), folder, *inputs("input_ids", length=1))
