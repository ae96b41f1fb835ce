"""Text as token ids, attention mask and token types, by a `tokenizer.json`; nothing is downloaded.

Names of inputs say their roles. Samples are padded at their end to the longest, or to the model's fixed length, and cut
to what model or tokenizer allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import cell_array, foreign_json, optional, parsing, read_text
from tna_onnx.data.options import Request
from tna_onnx.data.source import AnyArray
from tna_onnx.data.sources.arrays import require_text
from tna_onnx.errors import DataError, UsageError, listed
from tna_onnx.files import model_folders

_TEXT = ("text", "sentence", "content", "review", "question")
_PADDING = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>")
_LONGEST = 512  # tokens, where nothing says how many the model takes
_NO_LIMIT = 100_000  # tokens: what tokenizers write where there is none is far larger


def text_columns(where: str, text: Sequence[str], request: Request) -> tuple[str, ...]:
    """Return the columns to tokenise: those that the user names, else one with a usual name, else the only text
    column.
    """
    if request.columns:
        wrong = [name for name in request.columns if name not in text]
        if wrong or len(request.columns) > 2:
            raise DataError(
                f"{where}: --columns names {listed(request.columns)}; expected one column of text, or two for pairs, "
                f"of {listed(text) or 'none'}"
            )
        return tuple(request.columns)
    candidates = [name for name in text if name.lower() in _TEXT]
    if len(candidates) != 1:
        candidates = list(text)
    if len(candidates) != 1:
        raise DataError(
            f"{where}: expected one column of text, found {listed(text) or 'none'}; name it with --columns, or two "
            "for pairs"
        )
    return tuple(candidates)


def with_tokenizer(request: Request, kinds: Mapping[str, str], label: str | None) -> Request:
    """Return a request with the tokenizer in the model's folder, for text without one; else the same request."""
    file = request.model_file
    stated = request.tokenizer is not None or any(spec.name in kinds for spec in request.inputs)
    text = [name for name, kind in kinds.items() if kind == "text" and name != label]
    if file is None or stated or not text or not roles_of(request):
        return request
    place = next((place for place in model_folders(file) if (place / "tokenizer.json").is_file()), None)
    if place is None:
        return request
    return replace(request, tokenizer=place)


def tokenized(
    where: str, columns: Sequence[tuple[str, Sequence[Any]]], request: Request
) -> tuple[dict[str, AnyArray], str]:
    """Tokenise one column of text, or two as pairs. Gives the array (N, T) of each input, and a line for reports."""
    roles = roles_of(request)
    if not roles:
        inputs = listed(spec.name for spec in request.inputs)
        raise DataError(
            f"{where}: text needs a model that takes token ids (N, T) of integers, and a mask or token types beside "
            f"them; found inputs {inputs}; leave --tokenizer out, or store what the model takes as arrays"
        )
    for name, cells in columns:
        require_text(f"{where}: column {name!r}", cell_array(cells), np.arange(len(cells)))
    tokenizer, folder = _load(str(request.tokenizer), request.limits)
    fixed = next((spec.shape[1] for spec in request.inputs if spec.shape[1] is not None), None)
    longest = fixed or _longest(tokenizer, folder, request.limits)
    ids = [tokenizer.token_to_id(token) for token in _PADDING]
    padding = next((number for number in ids if number is not None), 0)  # without one, the mask alone tells padding
    if tokenizer.padding:
        padding = int(tokenizer.padding["pad_id"])
    # the side on which the model was trained to be cut and padded
    pads_left = (tokenizer.padding or {}).get("direction") == "left"
    truncation = tokenizer.truncation or {}
    sides = {key: truncation[key] for key in ("direction", "strategy") if key in truncation}
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest, **sides)
    texts = [cells for _, cells in columns]
    samples = list(zip(*texts, strict=True)) if len(texts) > 1 else list(texts[0])
    encoded = tokenizer.encode_batch(samples)
    cut = sum(bool(one.overflowing) for one in encoded)
    tokens = max((len(one.ids) for one in encoded), default=0)
    length = fixed or tokens
    if tokens > length:
        raise DataError(f"{where}: {tokens} tokens after cutting, the model takes {length}; use another tokenizer")
    parts = {"ids": ("ids", padding), "mask": ("attention_mask", 0), "types": ("type_ids", 0)}
    arrays = {}
    for spec in request.inputs:
        member, fill = parts[roles[spec.name]]
        rows = [getattr(one, member) for one in encoded]
        arrays[spec.name] = _padded_rows(rows, (len(rows), length), fill, spec.dtype, on_the_left=pads_left)
    side = ""
    if pads_left:
        side = "on the left "
    names = " and ".join(repr(name) for name, _ in columns)
    note = f"text of {names} tokenised by {request.tokenizer}, padded with id {padding} {side}to {length} tokens"
    if cut:
        note += f"; {cut:,} samples cut at {longest} tokens"
    return arrays, note


def _padded_rows(
    rows: Sequence[Sequence[int]], shape: tuple[int, int], fill: int, dtype: np.dtype[Any], *, on_the_left: bool
) -> AnyArray:
    array = np.full(shape, fill, dtype)
    for padded_row, values in zip(array, rows, strict=True):
        start = 0
        if on_the_left:
            start = shape[1] - len(values)
        padded_row[start : start + len(values)] = values
    return array


def roles_of(request: Request) -> dict[str, str]:
    """Return input name -> `ids`, `mask` or `types`; empty if the model does not take tokens (N, T)."""
    roles = {}
    for spec in request.inputs:
        name = spec.name.lower()
        role = "ids"
        if "mask" in name:
            role = "mask"
        elif "type" in name or "segment" in name:
            role = "types"
        roles[spec.name] = role
    wrong = [spec.name for spec in request.inputs if len(spec.shape) != 2 or spec.dtype.kind not in "iu"]
    if wrong or list(roles.values()).count("ids") != 1:
        return {}
    return roles


def _load(name: str, limits: Limits) -> tuple[Any, Path]:
    """Return the tokenizer and the folder that it lies in."""
    library = optional("tokenizers", "text", "turning text into tokens")
    file = Path(name)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise UsageError(f"{file}: no such file; give the folder of a tokenizer.json (tokenizer.save_pretrained)")
    with parsing(str(file), "cannot be read as a tokenizer", "save it again"):
        return library.Tokenizer.from_str(read_text(file, limits)), file.parent


def _longest(tokenizer: Any, folder: Path, limits: Limits) -> int:
    if tokenizer.truncation:
        return int(tokenizer.truncation["max_length"])
    # the second is the length of the model's table of positions, which the export writes beside the model
    stated = []
    for name, key in (("tokenizer_config.json", "model_max_length"), ("config.json", "max_position_embeddings")):
        file = folder / name
        if file.is_file():
            with parsing(str(file), "cannot be read", "save the tokenizer again"):
                length = foreign_json(read_text(file, limits)).get(key)
            if isinstance(length, int) and 0 < length < _NO_LIMIT:
                stated.append(length)
    return min(stated, default=_LONGEST)
