"""How tests run the command line: in this process, which is fast, or as the real program in a process of its own."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import click
from click.testing import CliRunner, Result

from tna_onnx.cli.group import group

__all__ = ["arguments_of", "cli", "program", "run"]


def arguments_of(function: Any) -> set[str]:
    """Return the names of everything that the command line can hand to a public function.

    Whole values (`settings`, `gates`) and `progress` are for Python alone.
    """
    names = set(inspect.signature(function).parameters)
    (words,) = get_args(get_type_hints(function)["words"])
    return names - {"words", "settings", "gates", "progress"} | set(words.__annotations__)


def cli(*words: object, command: click.Command = group) -> Result:
    """Run `tna-onnx WORDS` in this process; an exception other than an exit fails the test.

    >>> cli("--version").exit_code
    0
    """
    result = CliRunner().invoke(command, [str(word) for word in words], prog_name="tna-onnx")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def program(*words: object, code: str = "") -> list[str]:
    """Return the words that start the real program, after some code that may change the package."""
    start = f"import sys; sys.argv[0] = 'tna-onnx'\n{code}\nfrom tna_onnx.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, words)]


def run(*words: object, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `tna-onnx WORDS` in a process of its own; its outputs are captured unless `options` say otherwise."""
    if not {"stdout", "stderr"} & options.keys():
        options["capture_output"] = True
    return subprocess.run(program(*words, code=code), text=True, check=False, **options)
