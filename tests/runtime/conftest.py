"""An ONNX Runtime that is not there."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.fakes import FakeRuntime
from tna_onnx.runtime import providers


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a fake ONNX Runtime in place."""

    def put(available: list[str], given: list[str], **options: Any) -> FakeRuntime:
        fake = FakeRuntime(tmp_path, available, given, **options)
        monkeypatch.setattr(providers, "_onnxruntime", lambda: fake)
        return fake

    return put
