"""Start-up: what the help and the import of the package load. Times are in `benchmarks/startup.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

import tna_onnx
from tests.conftest import Small
from tna_onnx.cli.command import COMMANDS

# Each of these takes longer to import than all of click.
HEAVY = (
    "array_api_compat", "google.protobuf", "jinja2", "numpy", "onnx", "onnxruntime", "PIL", "pyarrow",
    "ray", "rich", "scipy", "sklearn", "torch",
)  # fmt: skip


DIGITS = Path(__file__).parents[1] / "models/digits"


def packages(modules: set[str]) -> set[str]:
    """Return those of our packages that are loaded, without the name of the whole."""
    return {name.removeprefix("tna_onnx.").rpartition(".")[0] for name in modules if name.startswith("tna_onnx.")}


def loaded(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the modules that it has loaded when it ends."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n"
    script += "print('modules:', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.rpartition("modules: ")[2].split())


def code_of(*words: str) -> str:
    return f"sys.argv = {['tna-onnx', *words]!r}; from tna_onnx.cli import main; main()"


@pytest.mark.parametrize("words", [("--help",), ("calibrate", "--help")])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    modules = loaded(code_of(*words))
    assert "tna_onnx.cli.command" in modules
    assert modules.isdisjoint(HEAVY)


def test_the_import_loads_nothing_heavy() -> None:
    modules = loaded("import tna_onnx; tna_onnx.__version__; dir(tna_onnx)")
    assert modules.isdisjoint({*HEAVY, "click", "tna_onnx.cli"})


def test_a_function_loads_its_keywords_and_result_and_the_first_call_the_work() -> None:
    names = ("calibrate", "guard", "shift", "study")
    modules = loaded(f"from tna_onnx import {', '.join(names)}")
    assert {"tna_onnx.api.calibrate", "tna_onnx.api.guard"} <= modules
    assert {"numpy", "tna_onnx.api.arguments", "tna_onnx.data.options"} <= modules
    assert modules.isdisjoint({*HEAVY, "click"} - {"numpy", "array_api_compat"})
    assert packages(modules).isdisjoint({"engine", "render", "runtime", "search", "data.sources"})
    assert modules.isdisjoint({"tna_onnx.graph.load", "tna_onnx.pipeline.job"})


def test_a_run_loads_no_distribution() -> None:
    model, data = DIGITS / "model.onnx", DIGITS / "test.npz"
    modules = loaded(f"import tna_onnx; tna_onnx.evaluate({str(model)!r}, {str(data)!r})")
    assert "onnxruntime" in modules
    assert modules.isdisjoint({"pyarrow", "scipy"})


@pytest.mark.slow
def test_a_default_run_of_calibrate_does_without_scipy(small: Small, tmp_path: Path) -> None:
    data = ["--calib", str(small.calib), "--eval", str(small.test), "-o", str(tmp_path / "out.onnx")]
    modules = loaded(code_of("calibrate", str(small.model), *data))
    assert "tna_onnx.maps.atypicality" in modules
    assert not any(name.partition(".")[0] == "scipy" for name in modules)


def test_a_command_loads_without_the_options_of_the_others() -> None:
    modules = loaded(code_of("inspect", "--help"))
    assert modules & {f"tna_onnx.cli.{module}" for module, _ in COMMANDS.values()} == {
        f"tna_onnx.cli.{COMMANDS['inspect'][0]}"
    }


def test_the_help_of_the_group_loads_no_command() -> None:
    modules = loaded(code_of("--help"))
    assert "tna_onnx.cli.command" in modules
    assert modules.isdisjoint({f"tna_onnx.cli.{module}" for module, _ in COMMANDS.values()})


def test_inspecting_loads_no_report_and_no_runtime() -> None:
    modules = loaded(code_of("inspect", str(DIGITS / "model.onnx")))
    assert "tna_onnx.results.inspection" in modules
    assert modules.isdisjoint({"onnxruntime", "scipy", "tna_onnx.results.report", "tna_onnx.render.terminal"})


def test_the_check_can_fail() -> None:
    assert not loaded("import tna_onnx; tna_onnx.calibrate").isdisjoint(HEAVY)


def test_a_wrong_command_loads_nothing_heavy() -> None:
    script = f"import sys\ntry:\n    {code_of('calibrat')}\nexcept SystemExit as end:\n    assert end.code == 2\n"
    script += "print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(result.stdout.split()).isdisjoint(HEAVY)


def test_public_names_resolve_and_have_docstrings() -> None:
    assert [name for name in tna_onnx.__all__ if not getattr(tna_onnx, name).__doc__] == []


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tna_onnx.nonsense
