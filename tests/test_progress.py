"""Progress that nobody watches."""

from __future__ import annotations

import pytest

from tna_onnx.progress import Progress, silent


def test_silence_takes_every_step_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress: Progress = silent
    for step in (("search", 0, 0), ("search", 1, 2), ("", 2, 1)):
        progress(*step)
    assert capfd.readouterr() == ("", "")
