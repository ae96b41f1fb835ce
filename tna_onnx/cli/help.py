"""The help of a command: the options that most people need, in groups; all of them with `--help-all`."""

from __future__ import annotations

from collections.abc import Iterator

import click

__all__ = ["SECTIONS", "help_all_option", "write_options"]

# Section -> names of parameters, in this order. Most people need those of _COMMON.
SECTIONS = {
    "Data": (
        "calib", "data", "eval", "labels", "eval_labels", "label_column", "classes", "columns", "tokenizer", "format",
        "ignore_label", "position", "train_features", "trust_labels", "expect_accuracy", "skip_bad", "data_root",
        "limits",
    ),
    "Images": (
        "preset", "preprocessing", "resize", "crop", "crop_pct", "scale", "mean", "std", "layout", "color",
        "interpolation",
    ),
    "Results": (
        "output", "overwrite", "details", "page", "json_file", "plot", "figures", "figure_formats", "mlflow",
        "mlflow_experiment", "dry_run", "confidence_level", "bins", "baseline", "out",
    ),
    "Decisions": (
        "add", "coverage", "set_score", "set_temperature", "per_class", "risk", "delta", "ood_score", "false_alarm",
        "ood_data", "dials", "prefix",
    ),
    "Class frequencies": ("target", "target_prior", "source_prior", "estimator", "draws", "trust_shift"),
    "What is fitted": (
        "protocol", "only", "repeats",
        "method", "search", "map", "predictions", "objective", "max_accuracy_drop", "anchor", "fold", "ets_loss",
        "map_objective", "quantized_head",
    ),
    "The search": (
        "ensemble_size", "max_ensemble_size", "antithetic", "tilt_bias", "angle_step", "adaptive", "alpha", "beta",
        "theta_s", "n_t", "seed",
    ),
    "Gates": ("max_ece", "max_nll", "min_accuracy", "require_improvement", "fail_if_worse"),
    "Model": ("head", "output_name", "output_kind", "isolate", "model_limits"),
    "Running": ("device", "tf32", "gpu_memory", "batch_size", "cache", "engine", "config", "quiet", "verbose"),
}  # fmt: skip

_COMMON = {
    "calib", "data", "eval", "labels", "label_column", "classes", "preset", "output", "details", "page", "json_file",
    "device", "out", "only", "target", "target_prior",
}  # fmt: skip

# What is common in one command and rare in the others that have it.
_COMMON_IN = {"guard": {"add", "coverage", "risk"}}

_ALL = "tna_onnx.help_all"


def help_all_option() -> click.Option:
    """Return `--help-all`, which a command adds to its options as click adds `--help`."""

    def show(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show all options."
    )


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command in their sections: the common ones, or all where they are asked for."""
    everything = ctx.meta.get(_ALL, False)
    common = _COMMON | _COMMON_IN.get(command.name or "", set())
    left = 0
    hidden = []
    for title, params in _sections(command, ctx):
        shown = [param for param in params if everything or param.name in common or title == ""]
        left += len(params) - len(shown)
        if len(shown) < len(params):
            hidden.append(title.lower())
        records = [record for param in shown if (record := param.get_help_record(ctx)) is not None]
        if records:
            with formatter.section(title or "Help"):
                formatter.write_dl(records)
    if left:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{left} more options ({', '.join(hidden)}): --help-all")


def _sections(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, list[click.Parameter]]]:
    params = {str(param.name): param for param in command.get_params(ctx) if isinstance(param, click.Option)}
    for title, names in SECTIONS.items():
        yield title, [params.pop(name) for name in names if name in params]
    yield "", list(params.values())
