"""Importing the package stays light, and the test that says so can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "ray", "matplotlib", "sklearn", "onnxruntime", "PIL", "onnx", "numpy"]


def loaded(statement: str) -> set[str]:
    """Return the names of HEAVY that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_or_the_command_line_loads_nothing_heavy() -> None:
    assert loaded("import tna_onnx") == set()
    assert loaded("import tna_onnx.cli.command") == set()


def test_calibrate_does_not_need_training_frameworks_or_plots() -> None:
    heavy = loaded("import tna_onnx; tna_onnx.calibrate; import tna_onnx.render.terminal")
    assert heavy & {"torch", "ray", "matplotlib", "sklearn", "onnxruntime", "PIL"} == set()


def test_this_test_can_fail() -> None:
    assert loaded("import numpy") == {"numpy"}


@pytest.mark.parametrize("name", __import__("tna_onnx").__all__)
def test_public_names_resolve_and_have_docstrings(name: str) -> None:
    import tna_onnx

    assert getattr(tna_onnx, name).__doc__


def test_unknown_names_are_attribute_errors() -> None:
    import tna_onnx

    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tna_onnx.nonsense
