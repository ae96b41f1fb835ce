"""Optional libraries: imported when asked for, and an error that says how to install them."""

import json

import pytest

from tna_onnx.data.foreign import optional
from tna_onnx.errors import UsageError


def test_what_is_there_is_returned() -> None:
    assert optional("json", "tables", "reading tables") is json


def test_what_is_not_there_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"reading tables needs no_such_library, .* pip install 'tna-onnx\[tables\]'"):
        optional("no_such_library.below", "tables", "reading tables")
