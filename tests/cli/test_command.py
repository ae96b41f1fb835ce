"""Errors inside a command become messages with exit codes; unexpected ones reach `main`."""

from __future__ import annotations

import click
import pytest

from tests.support import cli
from tna_onnx import errors
from tna_onnx.cli.command import Command, Group

OWN = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


def group_that_raises(error: BaseException) -> Group:
    def fail() -> None:
        raise error

    return Group("test", commands=[Command("fail", callback=fail)])


@pytest.mark.parametrize("kind", OWN)
def test_each_error_ends_with_the_exit_code_of_its_class(kind: type[errors.TnaError]) -> None:
    result = cli("fail", command=group_that_raises(kind("why")))
    assert (result.exit_code, result.stderr) == (kind.exit_code, "Error: why\n")


@pytest.mark.parametrize("error", [OSError("disk"), EOFError("end"), ValueError("bug")])
def test_unexpected_errors_are_left_to_main(error: Exception) -> None:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        cli("fail", command=group_that_raises(error))
    assert error in (caught.value, caught.value.__cause__)


def test_help_that_is_cut_off_is_a_normal_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(click.Context, "get_help", cut_off)
    monkeypatch.setattr("tna_onnx.cli.command.drop", lambda _: None)
    assert cli("fail", "--help", command=group_that_raises(ValueError())).exit_code == 0
