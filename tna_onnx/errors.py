"""Every exit code of the command line, and one family of errors whose classes own them.

    0  done                      4  DataError
    1  CheckFailed               5  DeviceError
    2  UsageError                6  ResultError
    3  UnsupportedModel         70  INTERNAL_ERROR, 130 INTERRUPTED: ends that no error class stands for

A message names options as the command line does; `in_words_of_python` makes arguments of them.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

__all__ = [
    "INTERNAL_ERROR",
    "INTERRUPTED",
    "CheckFailed",
    "DataError",
    "DeviceError",
    "NoLabels",
    "ResultError",
    "TnaError",
    "UnsupportedModel",
    "UsageError",
    "count_text",
    "in_words_of_python",
    "listed",
    "one_line",
    "writing",
]

P = ParamSpec("P")
R = TypeVar("R")

# EX_SOFTWARE of sysexits.h. Python's own 1 would look like a missed gate.
INTERNAL_ERROR = 70

# What a shell reports for a process that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130


class TnaError(Exception):
    """Base of every error that tna-onnx raises on purpose."""

    exit_code = 1


class CheckFailed(TnaError):
    """A check on the result failed: verification, or the result is worse than the input."""

    exit_code = 1


class UsageError(TnaError):
    """A path, flag or argument that cannot be used as given."""

    exit_code = 2


class UnsupportedModel(TnaError):
    """The model file cannot be read, or has no linear head that can be replaced safely."""

    exit_code = 3


class DataError(TnaError):
    """Samples or labels that do not fit the model, or cannot be used."""

    exit_code = 4


class NoLabels(DataError):
    """Samples have no labels, and nothing that they hold could be meant as such."""


class DeviceError(TnaError):
    """ONNX Runtime, a library, the device or the cluster is not available, or the machine has too little memory."""

    exit_code = 5


class ResultError(TnaError):
    """A result could not be written, after the work itself succeeded."""

    exit_code = 6


def one_line(foreign: object) -> str:
    r"""Return what a library says, on one line.

    >>> one_line(ValueError("in node\n  'head'"))
    "in node 'head'"
    """
    return " ".join(str(foreign).split())


@contextlib.contextmanager
def writing(path: object, kind: type[TnaError] = ResultError) -> Iterator[None]:
    """Write a file in this block; the system's reason why that fails becomes an error that names the file."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be written: {error.strerror}") from error


# "--classes FILE", "add --label-column species", "--search"; not "data--new.npz", and no value in "use --dry-run to"
_FLAG = re.compile(
    r"(?P<verb>\b(?:add|use|say|choose) )?(?<![\w./-])--(?P<name>[a-z][a-z-]*[a-z])"
    r"(?P<value> (?:RGB|BGR)\b| [A-Z]{2,}\b| -?\d(?:[\d.,-]*\d)?(?!\w)|(?P<word> (?!(?:to|with|without)\b)[\w./-]+))?"
)
_NEXT = re.compile(r"(?<==)(\S+|\([^()]*\)) (?=[a-z_]+=)")  # two arguments, one behind the other
_ARGUMENTS = {"limit": "the limit", "ray-option": "ray_options"}

_LISTED = 10  # names in a message; more are cut
_NAME = 120  # characters of a name in a message


def listed(names: Iterable[str]) -> str:
    """List names for a message; of many, only the first ones.

    >>> listed(["cat", "dog"])
    "'cat', 'dog'"
    """
    parts = [repr(name[:_NAME]) for name in names]
    text = ", ".join(parts[:_LISTED])
    if len(parts) > _LISTED:
        text += f", and {len(parts) - _LISTED} more"
    return text


def count_text(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it has one."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


def in_words_of_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function whose errors name its arguments, where the messages name flags.

    >>> def fails():
    ...     raise UsageError("several outputs; choose one with --output-name NAME, or add --search none")
    >>> in_words_of_python(fails)()
    Traceback (most recent call last):
    tna_onnx.errors.UsageError: several outputs; choose one with output_name=NAME, or add search='none'
    >>> def fails_too():
    ...     raise DataError("no recipe fits; add --mean 0.485,0.456,0.406 --std 0.25 --color BGR")
    >>> in_words_of_python(fails_too)()
    Traceback (most recent call last):
    tna_onnx.errors.DataError: no recipe fits; add mean=(0.485, 0.456, 0.406), std=0.25, color='BGR'
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TnaError as error:
            text = _FLAG.sub(_as_argument, str(error))
            error.args = (_NEXT.sub(r"\1, ", text), *error.args[1:])
            raise

    # found again under this name, by pickle too
    call.__module__ = "tna_onnx"
    return call


def _as_argument(flag: re.Match[str]) -> str:
    name = _ARGUMENTS.get(flag["name"], flag["name"].replace("-", "_"))
    verb = flag["verb"] or ""
    value = flag["value"] or ""
    plain = value.strip()
    if plain in ("RGB", "BGR"):
        return f"{verb}{name}={plain!r}"
    if plain.isupper():
        return f"{verb}{name}={plain}"
    if value and not flag["word"]:
        numbers = plain.split(",")
        return f"{verb}{name}={plain if len(numbers) == 1 else '(' + ', '.join(numbers) + ')'}"
    if verb and value:
        return f"{verb}{name}={plain!r}"
    return f"{verb}{name}{value}"
