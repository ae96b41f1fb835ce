"""The group `tna-onnx` with its table of commands, and the click classes of both: errors, help in sections, lists."""

import contextlib
import errno
import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

import tna_onnx
from tna_onnx.cli.config import naming_settings, read_from_environment, settings_shown
from tna_onnx.cli.process import drop, interruption, print_error, resource_error
from tna_onnx.errors import INTERRUPTED, TnaError, UsageError

# Section of the help -> names of the options that are no settings; those of settings say their section themselves.
SECTIONS = {
    "Data": ("calib", "data", "eval", "labels", "eval_labels", "scores", "teacher"),
    "Images": ("preset", "resize", "crop", "scale", "mean", "std", "color", "interpolation"),
    "Results": ("output", "overwrite", "page", "json_file", "figures", "dry_run", "out"),
    "Decisions": ("ood_data", "set_threshold"),
    "Class frequencies": ("target",),
    "What is fitted": ("protocol", "only"),
    "The search": (),
    "Gates": (),
    "Model": (),
    "Running": ("device", "batch_size", "cache", "config", "quiet", "verbose"),
}  # fmt: skip

_COMMON = {
    "calib", "data", "eval", "labels", "label_column", "classes", "preset", "output", "page", "json_file",
    "tokenizer", "columns", "predictions", "device", "out", "only", "target", "target_prior",
}  # fmt: skip

# What is common in one command and rare in the others that have it.
_COMMON_IN = {"guard": {"add", "coverage", "risk"}}

_ALL = "tna_onnx.help_all"
_FEW = 10  # options that one screen holds
_SHOWN = 60  # characters of a name that is too long to be shown


class Command(click.Command):
    """A command that reads the environment, with a short and a long help; its unexpected errors reach `main`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        read_from_environment(self)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, and `--help-all` where there are many."""
        params = super().get_params(ctx)
        if len(params) > _FEW:
            help_all = click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
                help="Show all options.",
            )  # fmt: skip
            params = [*params[:-1], help_all, *params[-1:]]
        return params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their sections: those that most people need, or all where they are asked for."""
        if len(self.params) <= _FEW:
            super().format_options(ctx, formatter)
            return
        everything = ctx.meta.get(_ALL, False)
        common = _COMMON | _COMMON_IN.get(self.name or "", set())
        hidden_options = 0
        hidden = []
        for title, params in self._sections(ctx):
            visible = [param for param in params if everything or param.name in common or title == ""]
            hidden_options += len(params) - len(visible)
            if len(visible) < len(params):
                hidden.append(title.lower())
            records = [record for param in visible if (record := param.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title or "Help"):
                    formatter.write_dl(records)
        if hidden_options:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"{hidden_options} more options ({', '.join(hidden)}): --help-all")

    def _sections(self, ctx: click.Context) -> Iterator[tuple[str, list[click.Parameter]]]:
        params = {str(param.name): param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        for title, names in SECTIONS.items():
            plain = [params.pop(name) for name in names if name in params]
            settings = [name for name, param in params.items() if getattr(param, "section", "") == title]
            yield title, [*plain, *(params.pop(name) for name in settings)]
        yield "", list(params.values())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and say what to type instead where a mistake is a common one."""
        try:
            with naming_settings(ctx):
                return super().parse_args(ctx, args)
        except click.UsageError as error:
            advice = self._advice(error)
            if not advice:
                raise
            raise click.UsageError(error.format_message() + advice, error.ctx) from error

    def _advice(self, error: click.UsageError) -> str:
        options = {param.name: param for param in self.params}
        if error.message.startswith("Got unexpected extra argument") and "eval" in options:
            return "; held-out data are named by --eval"
        if isinstance(error, click.BadParameter) and error.param is options.get("method"):
            maps = getattr(options["map"].type, "choices", ())
            word = next((name for name in maps if error.message.startswith(f"{name!r} is not one of")), "")
            if word:
                return f" It is a map: --map {word}"
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with settings_shown(ctx):
                return super().invoke(ctx)
        except Exception as error:
            # a library that is loaded when the signal comes says that it could not be loaded
            if stop := _interruption_behind(error):
                raise stop from None
            if isinstance(error, TnaError):
                raise
            missing = resource_error(error)
            if missing is not None:
                raise missing from error
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                raise UsageError(f"{str(error.filename)[:_SHOWN]}...: {error.strerror}; give a shorter name") from error
            if isinstance(error, FileNotFoundError) and error.filename is None:
                raise UsageError("the current folder is gone; change to one that is there") from error
            if isinstance(error, (EOFError, OSError)):
                # click would end with 1 and no traceback, as if the user had closed an input or a pipe.
                raise RuntimeError(f"unexpected {type(error).__name__}") from error
            raise


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print the help with all options."""
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _interruption_behind(error: Exception) -> KeyboardInterrupt | None:
    """Return the interruption that compiled code has made another error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause


class Group(click.Group):
    """Turns this package's errors into messages with their exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_may_be_cut_off():
            return super().make_context(*args, **kwargs)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands, without loading one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            with _help_may_be_cut_off():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            print_error(interruption(ctx))
            ctx.exit(getattr(stop, "exit_code", INTERRUPTED))
        # only documented errors end here; any other is a bug, which `main` reports
        except TnaError as error:
            print_error(f"Error: {error}")
            ctx.exit(error.exit_code)


@contextlib.contextmanager
def _help_may_be_cut_off() -> Iterator[None]:
    """End normally if the reader of `--help` goes away. Commands look after what they print themselves."""
    try:
        yield
    except BrokenPipeError:
        drop(sys.stdout)
        raise click.exceptions.Exit(0) from None


COMMANDS = {
    "calibrate": ("write", "Write a recalibrated copy of MODEL."),
    "card": ("write", "Write a model card from a result."),
    "compare": ("examine", "Measure several models on the same data."),
    "evaluate": ("examine", "Measure the accuracy and calibration of MODEL."),
    "features": ("write", "Store features, for later runs of `calibrate`."),
    "fit": ("write", "Calibrate logits or probabilities in files."),
    "guard": ("write", "Write a copy of MODEL that also decides."),
    "inspect": ("examine", "Show which node of MODEL is the head, or why there is none."),
    "shift": ("write", "Write a copy of MODEL for other class frequencies."),
    "study": ("examine", "Repeat the paper's experiments on MODEL."),
    "verify": ("examine", "Prove that RECALIBRATED was made from ORIGINAL."),
}
"""Command -> the module of this package that it is in, under its own name, and its line in the help of the group."""


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Each loads when it is asked for: a run needs the options of one, `--version` of none."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        try:
            command: click.Command = getattr(importlib.import_module(f"tna_onnx.cli.{COMMANDS[name][0]}"), name)
        except (ImportError, OSError, MemoryError) as error:
            raise resource_error(error) or error from error
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(
    cls=Group, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(tna_onnx.__version__, prog_name="tna-onnx")
def group() -> None:
    """Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 unsupported model, 4 unusable data,
    5 device or runtime not available, 6 report, JSON or log could not be written,
    70 a bug in tna-onnx, 130 interrupted.
    """
