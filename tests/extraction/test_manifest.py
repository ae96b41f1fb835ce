"""The manifest of a store: read back as it was written, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tna_onnx.extraction.manifest import MANIFEST, json_digest, read_manifest, replace_file, write_manifest

CONTENT = {
    "key": {"head": "fc", "beside": [], "recipe": None},
    "samples": 3,
    "chunk": 2,
    "arrays": {"features": {"dtype": "<f4", "shape": [2]}},
    "checksums": ["ab", "cd"],
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, CONTENT)
    assert read_manifest(tmp_path) == {"schema": 1, **CONTENT}
    write_manifest(tmp_path, {**CONTENT, "samples": 4})
    assert read_manifest(tmp_path) == {"schema": 1, **CONTENT, "samples": 4}
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_another_schema_is_not_read_even_with_its_digest(tmp_path: Path) -> None:
    manifest = {"schema": 2, **CONTENT}
    manifest["sha256"] = json_digest(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("dtype", [">f4", "<i4", "<u4", "|S4", "f4", "<f3", "<c8", 4, None])
def test_bytes_are_not_taken_for_other_numbers(dtype: object, tmp_path: Path) -> None:
    manifest = {"schema": 1, **CONTENT, "arrays": {"features": {"dtype": dtype, "shape": [2]}}}
    manifest["sha256"] = json_digest(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert read_manifest(tmp_path) is None


def test_the_digest_is_that_of_sorted_json() -> None:
    expected = hashlib.sha256(b'{"a": [1, null], "b": "x"}').hexdigest()
    assert json_digest({"b": "x", "a": [1, None]}) == expected


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
