"""Gates through the real command line: what is met and missed, which lines and exit codes that gives, what is left."""

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tna_onnx
from tests.api.test_choice import logits_of
from tests.conftest import Small
from tests.support import PLAIN, TILTED, WALKED, cli, ok, with_options, words_of
from tna_onnx.numerics.metric import METRICS, OBJECTIVES
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.gates import Gates
from tna_onnx.results.verdict import Standing

TS = words_of(PLAIN | {"objective": "ece"})
SEARCHED = words_of(TILTED | {"objective": "ece"})
# Members, other than their limit, change predictions.
WITH_MEMBERS: dict[str, Any] = WALKED | {"objective": "ece", "ensemble_size": 64}


@dataclass(frozen=True)
class Data:
    """Data for the small classifier.

    Attributes:
        own: labels drawn from the model's own probabilities: it is calibrated on them.
        own_test: the same, other samples.
        drop: samples on which the searched weights lose accuracy.
    """

    own: Path
    own_test: Path
    drop: Path


@pytest.fixture(scope="module")
def data(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder, rng = tmp_path_factory.mktemp("gates"), np.random.default_rng(11)
    for name in ("own", "own_test"):
        x = rng.standard_normal((1500, 8)).astype(np.float32)
        logits = logits_of(small.model, x)
        np.savez(folder / f"{name}.npz", x=x, labels=np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))
    words = WITH_MEMBERS | {"eval": small.test, "output": folder / "o.onnx"}
    with_options(tna_onnx.calibrate, small.model, small.calib, **words)
    x = rng.standard_normal((20000, 8)).astype(np.float32)
    before, after = (logits_of(file, x).argmax(axis=1) for file in (small.model, folder / "o.onnx"))
    other = np.flatnonzero(before != after)[:100]  # right before, wrong after
    rows = np.r_[other, np.flatnonzero(before == after)[: 900 - len(other)]]
    assert len(other) > 30
    labels = np.argmax(logits_of(small.model, x[rows]) / 3 + rng.gumbel(size=(len(rows), 5)), axis=1)
    labels[: len(other)] = before[other]
    np.savez(folder / "drop.npz", x=x[rows], labels=labels)
    return Data(folder / "own.npz", folder / "own_test.npz", folder / "drop.npz")


# calibrate


@pytest.fixture(scope="module")
def after(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    """Return the metrics of the file that temperature scaling writes, measured on it."""
    output = tmp_path_factory.mktemp("after") / "o.onnx"
    ok("calibrate", small.model, "--calib", small.calib, "-o", output, *TS)
    return tna_onnx.evaluate(output, small.test, device="cpu").metrics


LIMITS = {
    "--max-ece": ("ece", 100, 1, "ECE", ".2f", " %"),
    "--max-nll": ("nll", 1, 1, "NLL", ".4f", " nats"),
    "--min-accuracy": ("accuracy", 100, -1, "accuracy", ".2f", " %"),
}


def test_limits_on_metrics(small: Small, after: Metrics, tmp_path: Path) -> None:
    output, found = tmp_path / "o.onnx", tmp_path / "r.json"
    command = ["calibrate", small.model, "--calib", small.calib, "--eval", small.test, "-o", output, *TS]

    def limits(slack: float) -> dict[str, str]:
        return {
            flag: f"{factor * getattr(after, name) * (1 + sign * slack):.4f}"
            for flag, (name, factor, sign, *_) in LIMITS.items()
        }

    missed = cli(*command, *itertools.chain(*limits(-0.01).items()), "--json", found)
    assert missed.exit_code == 1, missed.output
    lines = [
        f"{flag} {limit}".rstrip("0") + f" missed: {label} is {factor * getattr(after, name):{digits}}{unit}"
        " on 1,500 held-out samples"
        for (flag, limit), (name, factor, _, label, digits, unit) in zip(
            limits(-0.01).items(), LIMITS.values(), strict=True
        )
    ]
    assert missed.stderr.strip() == f"Error: {chr(10).join(lines)}; no file was written"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]  # which says why
    report = json.loads(found.read_text())
    assert (report["missed"], report["output"]) == (lines, "")
    for name, *_ in LIMITS.values():
        assert report["comparison"]["after"][name] == pytest.approx(getattr(after, name), abs=1e-6)
    met = cli(*command, *itertools.chain(*limits(0.01).items()), "--json", found)
    assert (met.exit_code, met.stderr) == (0, "")
    assert output.exists()
    report = json.loads(found.read_text())
    assert (report["missed"], report["output"]) == ([], str(output))
    for flag, limit in limits(0.01).items():
        assert report["settings"]["gates"][flag[2:].replace("-", "_")] == float(limit)
    earlier = output.read_bytes()
    again = cli(*command, *itertools.chain(*limits(-0.01).items()))
    assert again.stderr.endswith(f"; no file was written; the earlier {output} is unchanged\n")
    assert (again.exit_code, output.read_bytes()) == (1, earlier)


def test_a_worse_result_is_required_or_accepted(small: Small, data: Data, tmp_path: Path) -> None:
    # fitted where the model is overconfident, measured where it is calibrated
    command = ["calibrate", small.model, "--calib", small.calib, "--eval", data.own_test]
    command += [*TS, "-o", tmp_path / "o.onnx"]
    missed = cli(*command)
    assert missed.exit_code == 1
    assert missed.stderr.startswith(
        "Error: the result is worse than the input on 1,500 held-out samples: NLL changes by +"
    )
    assert missed.stderr.endswith("--require nothing; no file was written\n")
    assert len(missed.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    assert ", ECE changes by +" in missed.stderr
    assert missed.stdout.startswith("The new model is worse")
    written = cli(*command, "--require", "nothing")
    assert (written.exit_code, written.stderr) == (0, "")
    assert "note     the result is significantly worse than the input: NLL changes by +" in written.stdout
    assert (tmp_path / "o.onnx").exists()


# Dry run


def test_a_dry_run_says_what_a_run_writes_and_writes_nothing(small: Small, tmp_path: Path) -> None:
    model, output = tmp_path / "m.onnx", tmp_path / "m.tna.onnx"
    model.write_bytes(small.model.read_bytes())
    command = ["calibrate", model, "--calib", small.calib, *SEARCHED, "--map", "ets", "--json", tmp_path / "r.json"]
    dry = cli(*command, "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "r.json"]
    planned = json.loads((tmp_path / "r.json").read_text())
    ok(*command)
    done = json.loads((tmp_path / "r.json").read_text())
    assert output.exists()
    assert {k for k in done if done[k] != planned[k]} == {"output", "output_sha256", "files", "notes", "dry_run"}
    assert (planned["output"], planned["dry_run"]) == ("", True)

    old, new = onnx.load(model).graph, onnx.load(output).graph
    before, after = ({t.name: t.SerializeToString() for t in g.initializer} for g in (old, new))
    changes = planned["changes"]
    assert changes["target"] == str(output)
    assert changes["tensors"] == sorted(k for k in before if before[k] != after[k])
    assert changes["added"] == sorted(after.keys() - before.keys())
    assert changes["nodes"] == sorted({n.name for n in new.node} - {n.name for n in old.node})
    assert f"note     dry run, no file was written; a run would write {output} with changed tensors: " in dry.stdout
    assert ", ".join(map(repr, changes["tensors"])) in dry.stdout
    assert "wrote    nothing" in dry.stdout


# evaluate


def test_gates_of_evaluate(small: Small, tmp_path: Path) -> None:
    metrics, found = tna_onnx.evaluate(small.model, small.test, device="cpu").metrics, tmp_path / "r.json"
    page = tmp_path / "r.html"
    command = ["evaluate", small.model, "--data", small.test, "--device", "cpu", "--json", found, "--report", page]
    ece, nll, accuracy = 100 * metrics.ece, metrics.nll, 100 * metrics.accuracy
    met = ["--max-ece", ece + 0.1, "--max-nll", nll + 0.1, "--min-accuracy", accuracy - 0.1]
    result = cli(*command, *met)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(found.read_text())["missed"] == []
    result = cli(*command, "--max-ece", ece - 0.1, "--max-nll", nll + 0.1, "--min-accuracy", accuracy + 0.1)
    assert result.exit_code == 1
    lines = result.stderr.removeprefix("Error: ").splitlines()
    assert [line.split()[0] for line in lines] == ["--max-ece", "--min-accuracy"]
    assert lines[1].endswith(f"missed: accuracy is {accuracy:.2f} % on 1,500 samples")
    assert "accuracy, %" in result.stdout  # the table is there all the same
    assert json.loads(found.read_text())["missed"] == lines
    assert f"{ece:.2f}" in page.read_text()  # and the page


# Python


@pytest.mark.parametrize(
    "given_",
    [
        {"max_ece": -1.0}, {"max_ece": 101.0}, {"max_nll": math.nan}, {"min_accuracy": math.nan}, {"max_nll": -0.1},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_usage_errors(small: Small, tmp_path: Path, given_: dict[str, float]) -> None:
    with pytest.raises(tna_onnx.UsageError, match=f"{next(iter(given_))} must be"):
        with_options(tna_onnx.calibrate, small.model, small.calib, output=tmp_path / "o.onnx", search="none", **given_)
    assert list(tmp_path.iterdir()) == []


# The rules by themselves


def metrics(n: int = 100, **values: float) -> Metrics:
    rest = {"accuracy": 0.5, "ece": 0.1, "adaece": 0.1, "nll": 1.0, "brier": 0.5}
    return replace(Metrics.unknown(n), **{"bins": 15, **rest, **values})


ends = st.floats(-1, 1)
intervals = st.tuples(ends, ends, ends).map(sorted).map(lambda e: Interval(e[1], e[0], e[2], 0.95))


@given(st.sampled_from(OBJECTIVES), st.fixed_dictionaries(dict.fromkeys(METRICS, intervals)))
def test_gates_on_changes(objective: str, differences: dict[str, Interval]) -> None:
    word = Standing.of(differences, objective).word

    def missed(**gates: object) -> bool:
        only = Gates(**{"require": "nothing", **gates})  # type: ignore[arg-type]
        return bool(only.changes_missed(differences, objective, metrics(), "held-out"))

    assert not missed()
    assert missed(require="improvement") == (word != "improved")
    assert missed(require="not-worse") == (word == "worse")
    assert missed(max_accuracy_drop=20.0) == (differences["accuracy"].high < -0.2)
