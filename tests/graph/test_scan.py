"""What is written passes a scanner for models that knows nothing of this package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import PLAIN, TILTED, ok, words_of

SCANNER = shutil.which("modelaudit", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))


@pytest.mark.slow
@pytest.mark.skipif(SCANNER is None, reason="needs modelaudit")
@pytest.mark.parametrize("settings", [PLAIN, {**TILTED, "map": "isotonic"}])
def test_a_scanner_finds_nothing(small: Small, settings: dict[str, object], tmp_path: Path) -> None:
    ok("calibrate", small.model, "--calib", small.calib, *words_of(settings), "-o", tmp_path / "o.onnx")
    assert SCANNER is not None
    # It would tell its makers of every scan.
    quiet = {**os.environ, "PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1", "HOME": str(tmp_path)}
    scan = [SCANNER, "scan", "--strict", "--format", "json", str(tmp_path / "o.onnx")]
    found = subprocess.run(scan, capture_output=True, text=True, check=False, env=quiet)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["bytes_scanned"] >= (tmp_path / "o.onnx").stat().st_size
    # Weights that stand out are reported as "info", and trained ones do.
    assert [issue["message"] for issue in report["issues"] if issue["severity"] != "info"] == []
