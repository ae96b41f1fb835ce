"""Start-up: what the help and the import of the package load. Times are in `benchmarks/startup.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each of these takes longer to import than all of click.
HEAVY = (
    "array_api_compat", "google.protobuf", "jinja2", "matplotlib", "numpy", "onnx", "onnxruntime", "PIL", "pyarrow",
    "rich", "scipy", "torch",
)  # fmt: skip
VERBS = ("calibrate", "evaluate", "features", "inspect", "study", "verify")


def loaded(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the modules that it has loaded when it ends."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n"
    script += "print('modules:', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.rpartition("modules: ")[2].split())


def code_of(*words: str) -> str:
    return f"sys.argv = {['tna-onnx', *words]!r}; from tna_onnx.cli import main; main()"


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((verb, "--help") for verb in VERBS)])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    modules = loaded(code_of(*words))
    assert "tna_onnx.cli.group" in modules
    assert modules.isdisjoint(HEAVY)


def test_the_import_loads_nothing_heavy() -> None:
    modules = loaded("import tna_onnx; tna_onnx.__version__; dir(tna_onnx)")
    assert modules.isdisjoint({*HEAVY, "click", "tna_onnx.cli"})


def test_names_of_maps_load_nothing_heavy() -> None:
    modules = loaded("from tna_onnx.maps import MAPS, MapName; assert 'ts' in MAPS and len(list(MAPS)) == len(MAPS)")
    assert modules.isdisjoint({*HEAVY, "tna_onnx.maps.base"})


def test_a_command_of_python_loads_only_what_every_run_needs() -> None:
    modules = loaded("from tna_onnx import calibrate")
    assert "tna_onnx.calibration.recalibrate" in modules
    assert modules.isdisjoint(
        {"scipy", "onnxruntime", "onnx.reference", "filelock", "psutil", "PIL", "jinja2", "rich", "click", "torch"}
    )


def test_the_check_can_fail() -> None:
    assert not loaded("import tna_onnx; tna_onnx.calibrate").isdisjoint(HEAVY)


def test_a_wrong_command_loads_nothing_heavy() -> None:
    script = f"import sys\ntry:\n    {code_of('calibrat')}\nexcept SystemExit as end:\n    assert end.code == 2\n"
    script += "print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(result.stdout.split()).isdisjoint(HEAVY)


def test_public_names_are_listed_before_they_are_loaded() -> None:
    """`dir` and completion know them all."""
    code = "import tna_onnx; assert {*tna_onnx.__all__} <= {*dir(tna_onnx)}, {*tna_onnx.__all__} - {*dir(tna_onnx)}"
    assert loaded(code).isdisjoint(HEAVY)
