"""The cases of `tests.fuzz.models` with inputs that atheris makes: guided by which lines of this package they reach.

    pip install atheris
    python -m tests.fuzz.atheris_models --seconds 3600 [--corpus FOLDER]

It starts from the small models of the tests. A finding is left in the current folder as `crash-DIGEST`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run until the time is over, or something is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="folder in which inputs that reach new lines are kept")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.stdout.write("atheris is not installed, so this harness does nothing: `pip install atheris`\n")
        return
    with atheris.instrument_imports(include=["tna_onnx"]):
        from tests.fuzz.models import check
        from tests.graph.samples import CASES
        from tna_onnx.errors import TnaError

    def one(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TnaError):
            check(data, Path(folder))

    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or Path(folder)
        corpus.mkdir(exist_ok=True)
        for k, name in enumerate(sorted(CASES)):
            (corpus / f"case-{k}").write_bytes(CASES[name]().proto.SerializeToString())
        words = [sys.argv[0], f"-max_total_time={options.seconds}", "-max_len=65536", "-timeout=20", str(corpus)]
        atheris.Setup(words, one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
