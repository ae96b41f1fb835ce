"""Calibration without bins in words: lines for a terminal, rows for a page; of one model, or before and after."""

from __future__ import annotations

from collections.abc import Callable

from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.bin_free import BinFree

__all__ = ["bin_free_lines", "bin_free_rows", "bin_free_sentence", "p_text"]

# p-values below it are called more than chance.
_LEVEL = 0.05

Row = tuple[str, Callable[[BinFree], str]]


def p_text(p: float | None) -> str:
    """Write a p-value in two digits; below a thousandth none of them matters.

    >>> p_text(0.0421), p_text(1e-9), p_text(None)
    ('0.042', '< 0.001', 'none')
    """
    if p is None:
        return "none"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2g}"


def bin_free_lines(*stages: BinFree) -> list[str]:
    """Return two lines; what chance alone gives is that of the last stage."""

    def listed(write: Callable[[BinFree], str]) -> str:
        return " -> ".join(map(write, stages))

    kuiper = listed(lambda it: f"{_percent(it.cumulative.kuiper)} %")
    p_value = _p_values(*stages)
    ece = listed(lambda it: f"{_percent(it.ece_debiased)} %")
    lost = listed(lambda it: _nats(it.corp.nll.miscalibration))
    last = stages[-1]
    return [
        f"bin-free Kuiper {kuiper} (p {p_value}); ECE debiased {ece}, by chance alone {_percent(last.ece_expected)} %",
        f"NLL      of it miscalibrated confidence {lost} nats, by chance alone {_nats(last.corp.nll.expected)}",
    ]


def _p_values(*stages: BinFree) -> str:
    known = [p_text(it.cumulative.kuiper_p) for it in stages if it.cumulative.kuiper_p is not None]
    if not known:
        return "not defined"
    # cross-fitted scores have none
    if len(known) < len(stages):
        return f"{known[0]} before"
    return " -> ".join(known)


def bin_free_sentence(bin_free: BinFree, *, cross_fitted: bool) -> str:
    """Say whether confidence and accuracy differ by more than chance, with the p-value of Kuiper's test.

    Without a p-value, say why: the scores are `cross_fitted`, or a sample has several predictions.
    """
    p = bin_free.cumulative.kuiper_p
    if p is None and not cross_fitted:
        return "there is no p-value, because the predictions of one sample depend on one another"
    if p is None:
        return "cross-fitted samples have no p-value, because the errors of the folds partly cancel"
    text = p_text(p)
    if p >= 0.001:
        # three digits: 0.0496 must not read 0.05 beside a level of 0.05
        text = f"= {p:.3f}"
    if p < _LEVEL:
        return f"confidence and accuracy differ by more than chance explains (p {text})"
    return f"chance explains the differences between confidence and accuracy (p {text})"


_ROWS: tuple[Row, ...] = (
    ("ECE debiased, %", lambda it: _percent(it.ece_debiased)),
    ("ECE by chance alone, %", lambda it: _percent(it.ece_expected)),
    ("Kuiper, %", lambda it: _percent(it.cumulative.kuiper)),
    ("p-value of Kuiper", lambda it: p_text(it.cumulative.kuiper_p)),
    ("Kolmogorov-Smirnov, %", lambda it: _percent(it.cumulative.kolmogorov_smirnov)),
    ("p-value of Kolmogorov-Smirnov", lambda it: p_text(it.cumulative.kolmogorov_smirnov_p)),
    ("NLL: miscalibration, nats", lambda it: _nats(it.corp.nll.miscalibration)),
    ("NLL: miscalibration by chance alone, nats", lambda it: _nats(it.corp.nll.expected)),
    ("NLL: discrimination, nats", lambda it: _nats(it.corp.nll.discrimination)),
    ("NLL: uncertainty, nats", lambda it: _nats(it.corp.nll.uncertainty)),
    ("NLL: among the other classes, nats", lambda it: _nats(it.corp.others)),
)


def bin_free_rows(*stages: BinFree) -> list[tuple[str, ...]]:
    """Return the rows of a table: what it is, then its value in each stage."""
    return [(title, *map(write, stages)) for title, write in _ROWS]


def _percent(value: float) -> str:
    return METRICS["ece"].number(value)


def _nats(value: float) -> str:
    return METRICS["nll"].number(value)
