"""Options that several commands share, as decorators: those of fields of dataclasses, data and preprocessing of images;
and how their texts become values: numbers and lists of them, image sizes, batch sizes, lists of words.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from tna_onnx.cli.config import load_settings
from tna_onnx.data.choices import BATCH_SIZE, PRESET_FIELDS, Color, Interpolation, Limits
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.fields import Setting, hints_of, plain_type, settings_of
from tna_onnx.files import model_file, name_problem
from tna_onnx.graph.options import ModelLimits, ModelOptions
from tna_onnx.guarding.guard_settings import ADDITIONS

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import Recipe


class Number(click.FloatRange):
    """A number in a range. NaN is refused, although every comparison with the ends of the range lets it pass."""

    name = "number"

    def _describe_range(self) -> str:
        """Write the range for the help: no x<=None where there is none."""
        if self.min is None and self.max is None:
            return ""
        return super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


def choice(choices: Sequence[str]) -> click.Choice:  # type: ignore[type-arg]  # a generic only from click 8.2 on
    """Return the type of one of some words, in any case: NLL and nll are the same."""
    return click.Choice(choices, case_sensitive=False)


class Words(click.Choice):  # type: ignore[type-arg]  # a generic only from click 8.2 on
    """One word of a choice, or several separated by commas; `flat` joins those of a repeated option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse."""
        # click converts a default again, which is a tuple by then.
        words = value if isinstance(value, tuple) else value.split(",")
        return tuple(super(Words, self).convert(word, param, ctx) for word in words)


class PresetPath(click.Path):
    """The name of a preset, in any case, or the path of a file with a recipe."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse.

        Raises click.BadParameter: neither of the two.
        """
        if str(value).lower() in PRESET_FIELDS:
            return str(value).lower()
        if problem := name_problem(value):
            self.fail(problem, param, ctx)
        if not Path(value).is_file():
            self.fail(f"'{value}' is no file, and none of {', '.join(PRESET_FIELDS)}.", param, ctx)
        return super().convert(value, param, ctx)


def names(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse names with commas between them; one that holds a comma stands in double quotes."""
    cells = [cell.strip() for row in csv.reader(texts, skipinitialspace=True) for cell in row]
    return tuple(cell for cell in cells if cell)


def flat(_ctx: click.Context, _param: click.Parameter, groups: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the words of all groups, each once, in the order of their first occurrence."""
    # a dict keeps the order of the first occurrence, which a set does not
    return tuple(dict.fromkeys(item for group in groups for item in group))


def one_head(_ctx: click.Context, _param: click.Parameter, heads: tuple[str, ...]) -> str | None:
    """Return the only word, None for none; of two, click would take the last without a word."""
    if len(heads) > 1:
        raise click.BadParameter(
            f"expected one head, got {', '.join(heads)}; calibrate one, and then the next on the file that this writes"
        )
    return next(iter(heads), None)


def numbers(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    """Parse comma-separated numbers, such as 0.485,0.456,0.406."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"expected numbers with commas between them, such as 0.485,0.456,0.406, got '{text}'"
        ) from None


def members(_ctx: click.Context, _param: click.Parameter, text: str) -> int | str:
    """Parse a number of members: a positive whole one, inf or auto."""
    if text in ("inf", "auto"):
        return text
    # not int(text) alone: that also takes " 7", "1_0" and "+3"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"expected a positive number, inf or auto, got '{text}'")


def limits(kind: Any, ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Parse NAME=NUMBER, repeated or with commas between them, as values of the dataclass `kind`.

    Those on the model become the argument `model_limits` where `kind` is that of data. Numbers may be written as 2e8.
    """
    kinds = {kind}
    if kind is Limits:
        kinds.add(ModelLimits)
    owners: dict[str, Any] = {
        field.name.replace("_", "-"): owner for owner in kinds for field in dataclasses.fields(owner)
    }
    values: dict[Any, dict[str, float]] = {owner: {} for owner in kinds}
    for part in ",".join(texts).split(",") if texts else ():
        name, _, number = part.partition("=")
        try:
            values[owners[name.strip()]][name.strip().replace("-", "_")] = float(number)
        except (KeyError, ValueError):
            names = ", ".join(sorted(owners))
            raise click.BadParameter(f"expected NAME=NUMBER with a name of {names}, got '{part}'") from None
    if kind is Limits:
        ctx.params["model_limits"] = ModelLimits(**values[ModelLimits])  # type: ignore[arg-type]  # floats are whole
    return kind(**values[kind])


def passed_on(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE of words that are passed on or are of classes: numbers, two with a comma between, or text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise click.BadParameter(f"expected NAME=VALUE, got '{text}'")
        parts = [_number(part) for part in value.split(",")]
        values[name.strip()] = parts[0] if len(parts) == 1 else tuple(parts)
    return values


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text.strip()


def size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | tuple[int, int] | None:
    """Parse a size in pixels: 256, or height and width as 224,320."""
    if text is None:
        return None
    try:
        sides = [int(part) for part in text.split(",")]
    except ValueError:
        sides = []
    if len(sides) == 1:
        return sides[0]
    if len(sides) == 2:
        return sides[0], sides[1]
    raise click.BadParameter(f"expected pixels such as 224, or HEIGHT,WIDTH such as 224,320, got '{text}'")


path_option = functools.partial(click.option, type=click.Path())

_WORD = "positional_data"

data_argument = click.argument(_WORD, metavar="[DATA]", required=False, expose_value=False, type=click.Path())

# Suffixes of models: a last word with one of them is no data.
_MODELS = (".onnx", ".ort")


def last_word(arguments: Sequence[str], data: str | None) -> tuple[tuple[str, ...], str]:
    """Return the models and the data of a command that takes several models."""
    ctx = click.get_current_context()
    *models, last = arguments
    is_model = last.lower().endswith(_MODELS)
    if ctx.get_parameter_source("data") is ParameterSource.COMMANDLINE and data is not None:
        return tuple(arguments), data
    # a setting gives way to what was typed
    if models and not is_model:
        return tuple(models), last
    if data is not None:
        return tuple(arguments), data
    raise click.UsageError("Missing data. Add them after the models, or as --data DATA.", ctx)


class DataOption(click.Option):
    """An option that a positional argument stands for; both are an error, a setting gives way to either."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value, and where it comes from."""
        value, source = super().consume_value(ctx, opts)
        argument = opts.get(_WORD)
        if not isinstance(argument, str):  # click has a value of its own for what is not given
            return value, source
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"the data are given twice, as '{argument}' and as {self.opts[0]} '{value}'", ctx)
        return argument, ParameterSource.COMMANDLINE

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value; say both ways to give it where there is none."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            raise click.UsageError(
                f"Missing data. Add them after the model, or as {self.opts[0]} DATA.", ctx
            ) from error


F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds options in the order in which the help shows them."""

    def add(command: F) -> F:
        # The decorator next to the function runs first, and click puts its option last.
        for option in reversed(options):
            command = option(command)
        return command

    return add


class FieldOption(click.Option):
    """The option of a setting; `section` is that of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return what the environment says; several values have commas between them, as behind the flag."""
        value = self.resolve_envvar_value(ctx)
        return value.split(",") if self.multiple and value is not None else super().value_from_envvar(ctx)


def field_options(cls: type, *names: str, **defaults: Any) -> Callable[[F], F]:
    """Return one decorator that adds the options of the settings of a dataclass.

    `names`: of the settings; all that have a section, if none is named.
    """
    flagged = [name for name, (_, about) in settings_of(cls).items() if about.section]
    return together(*(_field_option(cls, name, defaults) for name in names or flagged))


def _field_option(cls: type, name: str, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    default, about = settings_of(cls)[name]
    default = defaults.get(name, default)
    kind = plain_type(hints_of(cls)[name])
    flag = about.flag or name.replace("_", "-")
    text = about.meaning
    if about.note:
        text += f"  [default: {about.note}]"
    typed = _typed(kind, default, about)
    shows = not about.note and typed.get("default") not in (None, "", ()) and not typed.get("is_flag")
    words = {"help": text, "section": about.section, "show_default": shows, **typed}
    return click.option(f"--{flag}", name, cls=FieldOption, **words)


def _typed(kind: Any, default: Any, about: Setting) -> dict[str, Any]:
    """Return what click has to know to read the text of an option: its type, its default, a metavar."""
    more: dict[str, Any] = {"metavar": about.unit or None}
    if about.parse:
        return {**more, **_PARSED[about.parse](kind, default)}
    if kind is bool:
        return {"is_flag": True}
    more["default"] = default
    if get_origin(kind) is Literal:
        return {**more, "type": choice(get_args(kind))}
    if kind is int:
        return {**more, "type": int if about.low is None else click.IntRange(int(about.low))}
    if kind is float:
        return {**more, "type": Number(about.low, about.high)}
    return more


# How texts are read that the type of a field does not tell. For a callback the default is a text too.
_PARSED: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "path": lambda _, default: {"type": click.Path(), "default": default},
    "text": lambda _, default: {"default": default},
    "names": lambda *_: {"multiple": True, "callback": names},
    "options": lambda *_: {"multiple": True, "callback": passed_on},
    "head": lambda *_: {"multiple": True, "callback": one_head},
    "members": lambda _, default: {"callback": members, "default": str(default)},
    "limits": lambda kind, _: {"multiple": True, "callback": functools.partial(limits, kind)},
    "additions": lambda _, default: {
        "type": Words(ADDITIONS),
        "multiple": True,
        "callback": flat,
        "default": [",".join(default)] if default else [],
    },
}


def _in_folder(context: click.Context, parameter: click.Parameter, value: str) -> str:  # noqa: ARG001 - as click calls
    """Return the model in a folder, of which the default name of an output is made."""
    if "://" in value:
        raise UsageError(f"{value}: is a URL; download the model, and give the path of the file")
    path = Path(value)
    file = model_file(path)
    if file == path:
        return value
    return str(file)


model_argument = click.argument("model", type=click.Path(), callback=_in_folder)


def data_option(name: str, meaning: str, *, required: bool = True) -> Callable[[F], F]:
    """Return the option on samples: `--calib` and `--data` mean the same, and either may be the `name`."""
    flags = ("--calib", "--data") if name == "calib" else ("--data", "--calib")
    return click.option(*flags, name, cls=DataOption, required=required, type=click.Path(), help=meaning)


def calibration_data_options(
    calib: str, held_out: str, *, required: bool = False, calib_required: bool = True
) -> Callable[[F], F]:
    """Return the options on two sets of samples and their labels."""
    return together(
        data_option(
            "calib",
            f"{calib}: file, folder or URL; may also be given as DATA, after MODEL.",
            required=calib_required,
        ),
        path_option("--eval", required=required, help=held_out),
        path_option("--labels", help="File with the labels of --calib, if they are stored separately."),
        path_option("--eval-labels", help="File with the labels of --eval, if they are stored separately."),
    )


def written_options(ending: str, dry_run: str = "Do everything, but write no model.") -> Callable[[F], F]:
    """Return the options on the model that a command writes; `ending`: of its name by default; `dry_run`: its help."""
    return together(
        path_option("-o", "--output", help=f"File to write.  [default: MODEL{ending} beside the model]"),
        # an earlier output is replaced without asking; only the model itself needs this
        click.option("--overwrite", is_flag=True, help="Allow --output to replace the input model."),
        click.option("--dry-run", is_flag=True, help=dry_run),
    )


labels_option = path_option("--labels", help="File with the labels, if they are stored separately.")

labelled_data_options = together(data_option("data", "Labelled data: file, folder or URL."), labels_option)

result_options = together(
    click.option(
        "--json",
        "json_file",
        metavar="FILE",
        type=click.Path(allow_dash=True),
        help="Write the result as JSON to this file; with -, write it to standard output, and nothing else there.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress and print no table."),
)

run_options = together(
    click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="DEVICE",
        help="auto, cpu, cuda (or gpu) or cuda:INDEX.",
    ),
    click.option(
        "--batch-size",
        metavar="N",
        type=click.IntRange(1),
        default=BATCH_SIZE,
        show_default=True,
        help="Samples per run of the model.",
    ),
    result_options,
)

page_option = path_option("--report", "page", metavar="FILE", help="Write an HTML report with figures, in one file.")

# with these a command reads settings from a file and the environment
config_options = together(
    path_option(
        "--config",
        is_eager=True,  # before the options whose defaults it sets
        expose_value=False,
        callback=load_settings,
        help="TOML file with settings, named like the flags. Flags and TNA_ONNX_* variables take precedence.",
    ),
    click.option(
        "-v",
        "--verbose",
        count=True,
        help="Show where each setting comes from, and log each stage; calibrate also shows the methods that it "
        "compared. -vv logs every candidate, too. --quiet turns the log off.",
    ),
)

RECIPE_PARTS = ("resize", "crop", "scale", "mean", "std", "color", "interpolation")
"""Fields of Recipe that have an option of the same name."""

preprocessing_options = together(
    click.option(
        "--preset",
        metavar="NAME|FILE",
        type=PresetPath(),
        help=f"How images are preprocessed: {', '.join(PRESET_FIELDS)}, or the path of a preprocessor_config.json "
        "(Hugging Face) or config.json (timm). Flags such as --mean override parts of it.",
    ),
    click.option("--resize", metavar="PIXELS", callback=size, help="Resize to this shorter side, or to HEIGHT,WIDTH."),
    click.option("--crop", metavar="PIXELS", callback=size, help="Crop the centre: side, or HEIGHT,WIDTH."),
    click.option("--scale", type=float, help="Factor on pixel values 0..255.  [default: 1/255]"),
    click.option(
        "--mean",
        metavar="NUMBERS",
        callback=numbers,
        help="Subtract this from each channel after scaling, such as 0.485,0.456,0.406.",
    ),
    click.option(
        "--std",
        metavar="NUMBERS",
        callback=numbers,
        help="Then divide each channel by this, such as 0.229,0.224,0.225.",
    ),
    click.option("--color", type=choice(get_args(Color)), help="Colour channels.  [default: from the model]"),
    click.option(
        "--interpolation", type=choice(get_args(Interpolation)), help="Filter for --resize.  [default: bilinear]"
    ),
)

ONE_PREDICTION = ("ignore_label",)
"""What a command has no use for that takes models with one prediction a sample alone."""

ALL_ALIKE = ("group_column", "weight_column", "class_prior", "by")
"""What a command has no use for that neither groups nor weighs samples."""


def sample_options(*without: str) -> Callable[[F], F]:
    """Return how samples are read and run, in this order in the help; `without`: what a command would always refuse."""
    flagged = (name for name, (_, about) in settings_of(Data).items() if about.section)
    reading = field_options(Data, *(name for name in flagged if name not in without))
    return together(reading, preprocessing_options, field_options(ModelOptions), run_options)


def take_recipe(preset: str | None, arguments: dict[str, Any]) -> Recipe | None:
    """Take the values of the preprocessing options out of `arguments`.

    Gives the recipe; None if no option says how images are preprocessed.
    """
    from tna_onnx.data.images.preprocess import PRESETS, Recipe
    from tna_onnx.data.images.recipe_files import read_recipe

    # popped: what is left are the API's own keywords
    values = {name: arguments.pop(name) for name in RECIPE_PARTS}
    parts = {name: value for name, value in values.items() if value is not None}
    if preset in PRESETS:
        return PRESETS[preset].override(**parts)
    if preset is not None:
        return read_recipe(Path(preset)).override(**parts)
    # None, not an empty recipe: arrays are used as they are
    if not parts:
        return None
    return Recipe().override(**parts)
