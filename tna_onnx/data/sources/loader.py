"""Samples from a function in a Python file, `loader.py:function`: run only when the user names it.

The function takes no arguments and returns what `tna_onnx.data.sources.iterables` reads, or a mapping of whole arrays.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.sources.iterables import open_iterable, open_mapping
from tna_onnx.errors import DataError, TnaError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.request import Request
    from tna_onnx.data.sources.columns import ArraySource

__all__ = ["open_loader"]

_NUMBER = itertools.count()  # makes the names of imported files differ within a process


def open_loader(text: str, request: Request) -> ArraySource:
    """Run a function given as `path/to/file.py:name` and read the samples that it returns.

    The folder of the file is importable meanwhile, as it is when Python runs the file.

    Raises:
        UsageError: the file or the function is not there, or a recipe is given.
        DataError: the code raises, with file and line, or what it gives does not fit the model.
    """
    file, separator, name = text.rpartition(":")  # the last one: C:/loader.py:load has two
    path = Path(file)
    if not separator or path.suffix != ".py" or not name.isidentifier():
        raise UsageError(f"{text}: expected the function of a Python file, as loader.py:function")
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give the path of the Python file, as loader.py:function")
    request.check_arrays(text)
    with _importable(path.resolve().parent):
        try:
            function = getattr(_module(path), name, None)
            if not callable(function):
                raise UsageError(f"{path}: has no function {name!r}; name one that takes no arguments")
            data = function()
            if isinstance(data, Mapping):
                return open_mapping(data, request, title=text)
            return open_iterable(data, request, title=text)
        except TnaError:  # says already what is wrong with the samples
            raise
        except KeyboardInterrupt:
            raise
        # Of the user's code. SystemExit too: `sys.exit(0)` in there would end this process as if all were done.
        except BaseException as error:
            raise DataError(f"{text}: {_place(error, path)}{type(error).__name__}: {error}") from error


def _module(path: Path) -> Any:
    """Import a file under a name that no other module has."""
    name = f"_tna_onnx_loader_{next(_NUMBER)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported; give a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _place(error: BaseException, path: Path) -> str:
    """Return the last line of the user's file that the error passed."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if lines:
        return f"line {lines[-1]}: "
    return ""
