"""Each error has an exit code of its own, and the documents say which."""

from __future__ import annotations

import inspect
import re

import tna_onnx
from tests.conftest import ROOT
from tna_onnx import errors

OWN = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
BASE = errors.TnaError


def test_exit_codes_are_unique_and_none_is_success() -> None:
    codes = [kind.exit_code for kind in OWN if BASE in kind.__bases__]
    codes += [errors.INTERNAL_ERROR, errors.INTERRUPTED]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert max(codes) < 256  # what a process can end with


def test_the_table_of_the_module_is_that_of_its_classes() -> None:
    stated = {name: int(code) for code, name in re.findall(r"(\d+)\s+([A-Z]\w+)", errors.__doc__ or "")}
    expected = {kind.__name__: kind.exit_code for kind in OWN if BASE in kind.__bases__}
    assert stated == {**expected, "INTERNAL_ERROR": errors.INTERNAL_ERROR, "INTERRUPTED": errors.INTERRUPTED}


def test_the_reference_names_every_code() -> None:
    """Its table is written from the errors that are public; the other codes are named by hand."""
    page = (ROOT / "docs/reference/exit-codes.md").read_text("utf-8")
    by_hand = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    public = {kind.exit_code for kind in OWN if kind.__name__ in tna_onnx.__all__ and kind is not BASE}
    every = {kind.exit_code for kind in OWN} | {errors.INTERNAL_ERROR, errors.INTERRUPTED}
    assert public == set(range(1, 6))  # "1 to 5: one of the errors below"
    assert by_hand == every - public | {0}
