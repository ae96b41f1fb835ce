"""The data of a command: a flag, or the word behind the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

__all__ = ["DataOption", "data_argument", "last_word"]

_WORD = "positional_data"

data_argument = click.argument(_WORD, metavar="[DATA]", required=False, expose_value=False, type=click.Path())


# Suffixes of models: a last word with one of them is no data.
_MODELS = (".onnx", ".ort")


def last_word(words: Sequence[str], data: str | None) -> tuple[tuple[str, ...], str]:
    """Return the models and the data of a command that takes several models.

    Args:
        words: as typed; without `--data` the last one is the data.
        data: of the flag, or of a setting.

    Raises:
        UsageError: there are no data, or they are given twice.
    """
    ctx = click.get_current_context()
    *models, last = words
    is_model = last.lower().endswith(_MODELS)
    if ctx.get_parameter_source("data") is ParameterSource.COMMANDLINE and data is not None:
        return tuple(words), data
    # a setting gives way to what was typed
    if models and not is_model:
        return tuple(models), last
    if data is not None:
        return tuple(words), data
    raise click.UsageError("Missing data. Give them behind the models, or as --data DATA.", ctx)


class DataOption(click.Option):
    """An option that a positional argument stands for; both are an error, a setting gives way to either."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value, and where it comes from."""
        value, source = super().consume_value(ctx, opts)
        word = opts.get(_WORD)
        if not isinstance(word, str):  # click has a value of its own for what is not given
            return value, source
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"the data are given twice, as '{word}' and as {self.opts[0]} '{value}'", ctx)
        return word, ParameterSource.COMMANDLINE

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value; say both ways to give it where there is none."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            raise click.UsageError(
                f"Missing data. Give them behind the model, or as {self.opts[0]} DATA.", ctx
            ) from error
