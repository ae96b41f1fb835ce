"""Options of `calibrate` on the search and the map; their defaults and choices are those of `Settings`."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from tna_onnx.calibration.settings import (
    ANCHORS,
    ETS_LOSSES,
    MAP_CHOICES,
    MAP_OBJECTIVES,
    METHODS,
    PAPER,
    PREDICTIONS,
    QUANTIZED_HEADS,
    SEARCHES,
    Settings,
)
from tna_onnx.cli.options import together
from tna_onnx.cli.types import Number, choice, members
from tna_onnx.numerics.checks import MAX_N_T
from tna_onnx.numerics.metric import OBJECTIVES

__all__ = ["search_options", "take_protocol"]

PROTOCOLS = ("default", "paper")

_what_options = together(
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        default="default",
        show_default=True,
        help="paper: use the paper's settings for all options below that are not given: --method tna, 10 members, "
        "mRC checked every 50 rotations, the ECE as objective, maps fitted as in their sources, the whole "
        "grid, an unscaled bias, no limit on the accuracy.",
    ),
    click.option(
        "--method",
        type=choice(METHODS),
        default=Settings.method,
        show_default=True,
        help="What --search and --map do if they are not given. auto: cross-validation chooses, and keeps the "
        "input model if nothing is better; tna: the paper's method, a sparse search followed by ts.",
    ),
    click.option(
        "--search",
        type=choice(SEARCHES),
        default=Settings.search,
        show_default=True,
        help="How the weight of the last layer may change. none: it stays; sparse: its class vectors are turned by"
        " small random rotations and averaged, then the map is fitted; complete: each such weight is tried "
        "with a map of its own; auto: as --method says.",
    ),
    click.option(
        "--map",
        type=choice(MAP_CHOICES),
        default=Settings.map,
        show_default=True,
        help="Calibration map: none, temperature (ts), ensemble temperature (ets), temperature and class biases "
        "(bias), structured vector and matrix scaling (svs, sms), svs of smoothed log-probabilities (svs-mix), "
        "isotonic one-vs-all (irova), atypicality-aware (aar), a refit of the last layer near the trained one (refit); "
        "for two classes platt, beta and quadratic; for several labels a sample ts, and label-ts, label-platt and "
        "label-isotonic for each label by itself.",
    ),
    click.option(
        "--anchor",
        type=choice(ANCHORS),
        default=Settings.anchor,
        show_default=True,
        help="Layer to tilt, with --method tna or a --search by name. original: the trained one; refit: one that "
        "is first refitted near the trained one.",
    ),
    click.option(
        "--predictions",
        type=choice(PREDICTIONS),
        default=Settings.predictions,
        show_default=True,
        help="keep: auto considers only methods that never change a predicted class.",
    ),
    click.option(
        "--fold/--no-fold",
        default=Settings.fold,
        show_default=True,
        help="Fold linear maps into weight and bias, or append nodes for them.",
    ),
    click.option(
        "--ets-loss",
        type=choice(ETS_LOSSES),
        default=Settings.ets_loss,
        show_default=True,
        help="Loss for fitting the weights of ETS.",
    ),
    click.option(
        "--map-objective",
        type=choice(MAP_OBJECTIVES),
        default=Settings.map_objective,
        show_default=True,
        help="Metric for fitting the temperature of ts. auto: the metric of --objective.",
    ),
    click.option(
        "--objective",
        type=choice(OBJECTIVES),
        default=Settings.objective,
        show_default=True,
        help="Metric for choosing the angle, the method and the temperature of ts.",
    ),
    click.option(
        "--max-accuracy-drop",
        type=Number(0, 100),
        default=Settings.max_accuracy_drop,
        show_default=True,
        help="Largest loss of accuracy on the calibration data that a search accepts, in percentage points; the "
        "automatic choice among all methods accepts none. Also a gate: fail if the whole interval of the loss"
        " is above this.",
    ),
)

_weight_options = together(
    click.option(
        "--ensemble-size",
        metavar="N|inf|auto",
        # a word or a number, which no type of click's covers
        callback=members,
        default=str(Settings.ensemble_size),  # a text, because the callback reads texts
        show_default=True,
        help="Number of tilted weights to average (n_e). auto: 10, as in the paper, and more if accuracy requires "
        "it (always 10 in a complete search); inf: the limit of infinitely many.",
    ),
    click.option(
        "--max-ensemble-size",
        type=click.IntRange(1),
        default=Settings.max_ensemble_size,
        show_default=True,
        help="With --ensemble-size auto: average at most this many tilted weights. If accuracy requires more, the "
        "limit of infinitely many is used.",
    ),
    click.option(
        "--antithetic",
        is_flag=True,
        default=Settings.antithetic,
        help="Average pairs of a rotation and its transpose.",
    ),
    click.option(
        "--tilt-bias/--no-tilt-bias",
        default=Settings.tilt_bias,
        show_default=True,
        help="Scale the bias by the factor by which averaging shortens the weight, or leave it unchanged, as in "
        "the paper.",
    ),
    click.option(
        "--angle-step",
        type=click.FloatRange(0, 90, min_open=True, max_open=True),
        default=Settings.angle_step,
        show_default=True,
        help="Step of the angle grid, in degrees.",
    ),
    click.option(
        "--adaptive/--full-grid",
        default=Settings.adaptive,
        show_default=True,
        help="Try the angles from coarse to fine, or the whole grid first.",
    ),
    click.option(
        "--alpha",
        type=float,
        default=Settings.alpha,
        show_default=True,
        help="First shape parameter of the Beta distribution of the angles.",
    ),
    click.option(
        "--beta",
        type=float,
        default=Settings.beta,
        show_default=True,
        help="Second shape parameter of the Beta distribution of the angles.",
    ),
    click.option(
        "--theta-s",
        type=float,
        default=Settings.theta_s,
        show_default=True,
        help="Largest angle of a rotation, in radians.",
    ),
    click.option(
        "--n-t",
        type=click.IntRange(1, MAX_N_T),
        default=Settings.n_t,
        show_default=True,
        help="Check the angle after this many rotations; a tilted weight can only stop at a check. The paper uses 50.",
    ),
    click.option(
        "--quantized-head",
        type=choice(QUANTIZED_HEADS),
        default=Settings.quantized_head,
        show_default=True,
        help="If the weight is stored quantised (QDQ): quantise the new one too, or store it as float.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=Settings.seed,
        show_default=True,
        help="Seed of all random draws.",
    ),
)

search_options = together(_what_options, _weight_options)


def take_protocol(arguments: dict[str, Any]) -> None:
    """Take `protocol` out of the arguments; with `paper`, options that nobody gave get the paper's values."""
    if arguments.pop("protocol") == "default":
        return
    context = click.get_current_context()
    # a configuration file and the environment count as given
    unsaid = [name for name in PAPER if context.get_parameter_source(name) is ParameterSource.DEFAULT]
    arguments |= {name: PAPER[name] for name in unsaid}
