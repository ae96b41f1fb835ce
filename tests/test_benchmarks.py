"""Every script in `benchmarks/` can be imported and shows its help. mypy checks the calls into the package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8"))
# A name that is missing in these is a mistake; any other one is a library that is not installed.
OWN = {"tna_onnx", "tests", *(path.stem for path in FOLDER.glob("*.py"))}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the source archive has no benchmarks")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_shows_its_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(FOLDER)  # as Python does for a script
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in OWN:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name}")


def test_there_are_scripts() -> None:
    assert {"adaptive", "performance", "reference_runs"} <= {path.stem for path in SCRIPTS}
