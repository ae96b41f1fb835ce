"""Samples that come in groups: read from every kind of data, on one side only, and independent only as groups."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.conftest import Small
from tests.data.samples import write_columns
from tests.support import PLAIN, cli, loaded, ok, refused, with_options
from tna_onnx.errors import DataError, UsageError

Array = NDArray[Any]
Arrays = dict[str, Array]


@pytest.fixture(scope="module")
def arrays(small: Small) -> Arrays:
    found = {name: values[:300] for name, values in loaded(small.calib).items()}
    return {**found, "patient": np.arange(300) // 6}


def written(path: Path, arrays: Arrays, suffix: str = ".npz") -> Path:
    """Write the samples in one form; their groups as text where that has types, and x as columns in a table."""
    patient = arrays["patient"].astype(str) if suffix == ".parquet" else arrays["patient"]
    path = path.with_suffix(suffix)
    if suffix == ".npz":
        return write_columns(path, {**arrays, "patient": patient})
    columns = {f"x{k}": column for k, column in enumerate(arrays["x"].T)}
    return write_columns(path, {**columns, "patient": patient, "label": arrays["labels"]})


def features(path: Path, arrays: Arrays) -> Path:
    columns = {"features": arrays["x"].astype(np.float32), "label": arrays["labels"], "patient": arrays["patient"]}
    return write_columns(path.with_suffix(".parquet"), columns)


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_a_column_says_which_samples_belong_together(small: Small, arrays: Arrays, tmp_path: Path, suffix: str) -> None:
    expected = tna_onnx.evaluate(
        small.model, tna_onnx.Data({"x": arrays["x"], "labels": arrays["labels"]}, groups=arrays["patient"])
    )
    assert expected.metrics.groups == 50
    path = written(tmp_path / "data", arrays, suffix)
    done = ok("evaluate", small.model, path, "--group-column", "patient", "--json", tmp_path / "r.json")
    assert "N = 300 in 50 groups (design effect" in done.output
    metrics = json.loads((tmp_path / "r.json").read_text())["metrics"]
    assert metrics["groups"] == 50
    assert metrics["design_effect"] == pytest.approx(expected.metrics.design_effect, rel=1e-6)


def test_a_column_that_is_not_there_is_named(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    words = ["evaluate", small.model, written(tmp_path / "data", arrays, ".csv"), "--group-column", "patiant"]
    assert "'patient'" in refused(4, "no column 'patiant' for --group-column", *words).output


def test_an_empty_cell_is_refused_with_its_row(small: Small, arrays: Arrays) -> None:
    patients = arrays["patient"].astype(object)
    patients[7] = None
    with pytest.raises(DataError, match="empty in row 7"):
        tna_onnx.evaluate(small.model, tna_onnx.Data({"x": arrays["x"], "labels": arrays["labels"]}, groups=patients))
    with pytest.raises(DataError, match=r"300 samples, found shape \(299,\)"):
        tna_onnx.evaluate(
            small.model, tna_onnx.Data({"x": arrays["x"], "labels": arrays["labels"]}, groups=patients[1:])
        )


def test_none_is_a_name_and_bytes_are_text(small: Small, arrays: Arrays) -> None:
    """A treatment may be "none"; the same patients are b"p1" in one file and "p1" in another."""
    data = {"x": arrays["x"], "labels": arrays["labels"]}
    drugs = np.where(np.arange(len(arrays["labels"])) % 3 == 0, "none", "aspirin")
    for values in (drugs, drugs.astype(np.bytes_), drugs.astype(object)):
        found = tna_onnx.evaluate(small.model, tna_onnx.Data(data, by=values), device="cpu").subgroups
        assert {(part.name, part.metrics.n) for part in found} == {("none", 100), ("aspirin", 200)}


def test_what_a_group_is_called_and_their_order_do_not_matter(small: Small, arrays: Arrays) -> None:
    data = {"x": arrays["x"], "labels": arrays["labels"]}
    number = arrays["patient"]
    reports = [
        with_options(tna_onnx.calibrate, small.model, data, groups=groups, **PLAIN)
        for groups in (number, number.astype(float), np.array([f"p{value:03}" for value in number]))
    ]
    assert reports[0].comparison.before.groups == 50
    assert all(report.comparison == reports[0].comparison for report in reports)


def test_one_sample_a_group_is_no_group(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    """Without groups: the same report and the same bytes."""
    one = {**arrays, "patient": np.arange(300)}
    done = []
    for words in ([], ["--group-column", "patient"]):
        out = tmp_path / f"o{len(words)}.onnx"
        command = ["calibrate", small.model, written(tmp_path / "d", one), "--search", "none", "--map", "ts", "-o", out]
        ok(*command, "--overwrite", "--json", tmp_path / "r.json", *words)
        report = json.loads((tmp_path / "r.json").read_text())
        done.append((out.read_bytes(), report["comparison"], report["recall"]))
    assert done[0] == done[1]


def test_a_group_on_both_sides_is_refused_as_a_copy_is(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    calib = written(tmp_path / "calib", {name: values[:150] for name, values in arrays.items()})
    other = {name: values[150:] for name, values in arrays.items()}
    shared = written(tmp_path / "shared", {**other, "patient": other["patient"] - 20})
    command = ["calibrate", small.model, calib, "--search", "none", "--map", "ts", "-o", tmp_path / "o.onnx"]
    command += ["--group-column", "patient"]
    refused(4, "belong to groups of calibration samples", *command, "--eval", shared)
    allowed = cli(*command, "--eval", shared, "--limit", "overlap=100")
    assert allowed.exit_code in (0, 1)
    assert "belong to groups of calibration samples" in allowed.output
    assert "belong to groups of" not in cli(*command, "--eval", written(tmp_path / "apart", other)).output


def test_few_groups_claim_nothing_and_fewer_than_folds_are_refused(small: Small, arrays: Arrays) -> None:
    data = {"x": arrays["x"], "labels": arrays["labels"]}
    plain = with_options(tna_onnx.calibrate, small.model, data, **PLAIN)
    few = with_options(tna_onnx.calibrate, small.model, data, groups=np.arange(300) % 8, **PLAIN)
    some = with_options(tna_onnx.calibrate, small.model, data, groups=np.arange(300) % 20, **PLAIN)
    assert plain.standing.word == "improved"
    assert few.standing.word == "no significant change"
    assert few.standing.better == few.standing.worse == ()
    assert any("8 groups are few" in note and "below 10" in note for note in few.notes)
    assert some.standing.word == "improved"
    assert any("20 groups are few" in note and "below 30" in note for note in some.notes)
    with pytest.raises(DataError, match="at least 5 groups of samples, found 3"):
        with_options(tna_onnx.calibrate, small.model, data, groups=np.arange(300) % 3, **PLAIN)
    with pytest.raises(DataError, match="at least 2 groups of samples, found 1"):
        tna_onnx.evaluate(small.model, tna_onnx.Data(data, groups=np.zeros(300)))


def test_groups_of_arrays_are_not_those_of_held_out_samples(small: Small, arrays: Arrays) -> None:
    data = {"x": arrays["x"][:150], "labels": arrays["labels"][:150]}
    other = {"x": arrays["x"][150:], "labels": arrays["labels"][150:]}
    words: dict[str, Any] = {**PLAIN, "data": tna_onnx.Data(groups=arrays["patient"][:150])}
    with pytest.raises(UsageError, match="those of eval too"):
        tna_onnx.calibrate(small.model, data, eval=other, **words)
    held_out = tna_onnx.Data(other, groups=arrays["patient"][150:])
    assert tna_onnx.calibrate(small.model, data, eval=held_out, **words).comparison.before.groups == 25


@pytest.mark.parametrize("command", ["shift", "study"])
def test_commands_that_would_ignore_groups_refuse_them(small: Small, arrays: Arrays, command: str) -> None:
    run = {"shift": tna_onnx.shift, "study": tna_onnx.study}[command]
    with pytest.raises(UsageError, match="does not take groups into account"):
        run(small.model, tna_onnx.Data(small.calib, groups=arrays["patient"]))
    refused(2, "No such option '--group-column'", command, small.model, small.calib, "--group-column", "patient")


def test_a_calibrator_takes_groups_and_so_does_fit(arrays: Arrays, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    logits = (4 * (np.eye(3)[y] + rng.standard_normal((300, 3)))).astype(np.float32)
    fitted = tna_onnx.Calibrator(map="ts").fit(logits, y, groups=arrays["patient"])
    assert fitted.report_.comparison.before.groups == 50
    np.savez(tmp_path / "scores.npz", logits=logits, labels=y, patient=arrays["patient"])
    done = ok("fit", tmp_path / "scores.npz", "--map", "ts", "--group-column", "patient", "-o", tmp_path / "c.onnx")
    assert "in 50 groups" in done.output
    words = ["fit", tmp_path / "scores.npz", "--group-column", "nobody", "-o", tmp_path / "d.onnx"]
    refused(4, "no column 'nobody'", *words)


def test_the_group_of_an_image_is_a_part_of_its_path_or_a_column(tmp_path: Path) -> None:
    from tests.data.samples import ANY_SIZE, open_source
    from tna_onnx.data.images.preprocess import Recipe

    names = [f"{k % 2}/video{k // 4}_frame{k}.png" for k in range(12)]
    rows = ["path,label,camera"]
    for k, name in enumerate(names):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), k, np.uint8)).save(tmp_path / "images" / name)
        rows.append(f"images/{name},{k % 2},c{k % 3}")
    (tmp_path / "list.csv").write_text("\n".join(rows))

    def groups(path: Path, column: str) -> list[str]:
        source = open_source(path, [ANY_SIZE], 2, Recipe(), group_column=column)
        return source.sample_info["group"].tolist()

    assert groups(tmp_path / "images", r"video\d+")[:2] == ["video0", "video0"]
    assert sorted(set(groups(tmp_path / "images", r"video(\d+)_"))) == ["0", "1", "2"]
    assert groups(tmp_path / "list.csv", "camera")[:4] == ["c0", "c1", "c2", "c0"]
    assert groups(tmp_path / "list.csv", r"video(\d+)_")[3:5] == ["0", "1"]
    with pytest.raises(DataError, match=r"'vidoe' is no column \(columns: 'camera'\)"):
        groups(tmp_path / "list.csv", "vidoe")
    with pytest.raises(UsageError, match="no regular expression"):
        groups(tmp_path / "images", "(video")


def test_thresholds_come_from_one_sample_of_each_group(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    path = written(tmp_path / "d", arrays)
    command = ["guard", small.model, path, "--add", "set", "--coverage", "90", "--device", "cpu"]
    done = ok(*command, "-o", tmp_path / "g.onnx", "--group-column", "patient", "--json", tmp_path / "g.json")
    assert "50 samples gave the thresholds" in done.output
    assert "for one sample of a new group" in done.output
    assert "new group" not in cli(*command, "-o", tmp_path / "h.onnx").output
    flagged = {"group_column": "patient", "positive": "1", "decide": "fpr<=0.3", "device": "cpu"}
    report = with_options(tna_onnx.guard, small.model, path, **flagged)
    assert "for one sample of a new group" in report.outputs[-1].promise
    command += ["--coverage", "99", "--group-column", "patient"]
    refused(4, "of each group one", *command, "-o", tmp_path / "i.onnx")


@pytest.mark.parametrize(("suffix", "kept"), [(".npz", "--cache"), (".parquet", "--output")])
def test_features_keep_groups_and_weights(small: Small, arrays: Arrays, tmp_path: Path, suffix: str, kept: str) -> None:
    """As columns `group` and `weight` of a store and of Parquet files, whatever they are called in the data."""
    if kept == "--output":
        pytest.importorskip("pyarrow")
    path = written(tmp_path / "d", arrays, suffix)
    columns = ["--group-column", "patient", "--weight-column", "patient"]
    named = ["--group-column", "group", "--weight-column", "weight"]
    features = tmp_path / "features"
    ok("features", small.model, path, kept, features, *columns)
    words = ["calibrate", small.model, "--search", "none", "--map", "ts", "--device", "cpu"]
    reports = []
    for data, flags, name in ((path, columns, "a"), (features, named, "b")):
        ok(*words, data, *flags, "-o", tmp_path / f"{name}.onnx", "--json", tmp_path / f"{name}.json")
        reports.append(json.loads((tmp_path / f"{name}.json").read_text())["comparison"]["before"])
    assert reports[0]["groups"] == reports[1]["groups"] == 50
    # files of features are in another order, so that folds are others; the input's metrics are not
    for name in ("nll", "effective_n"):
        assert reports[1][name] == pytest.approx(reports[0][name], rel=1e-5)
    refused(4, "no column 'patient'", *words, features, "--group-column", "patient", "-o", tmp_path / "c.onnx")


# --- Copies among calibration samples decide nothing: what is written is what the distinct samples give


CLASSES, FEATURES = 10, 128


def weight(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((CLASSES, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of more features than a calibration set of a few hundred samples can fit."""
    nodes = nodes_of("Relu x > f; Gemm f w b > logits transB=1")
    tensors = {"w": np.float32(0.4) * weight(0), "b": np.zeros(CLASSES, np.float32)}
    path = tmp_path_factory.mktemp("copies") / "model.onnx"
    onnx.save(small_model(nodes, {"x": ["N", FEATURES]}, {"logits": ["N", CLASSES]}, tensors), path)
    return path


def drawn(n: int, copies: int, noise: float, seed: int) -> dict[str, Array]:
    """Samples whose labels follow the head roughly, and copies of each of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, FEATURES)).astype(np.float32)
    scores = np.maximum(x, 0) @ (0.4 * weight(0) + 0.5 * weight(1)).T
    labels = (scores + 4 * rng.gumbel(size=scores.shape)).argmax(axis=1)
    x = np.repeat(x, copies, axis=0)
    x = x + noise * rng.standard_normal(x.shape).astype(np.float32)
    return {"x": x.astype(np.float32), "labels": np.repeat(labels, copies)}


def calibrated(model: Path, folder: Path, data: dict[str, Array], *words: object) -> tuple[Any, dict[str, Any]]:
    np.savez(folder / "calib.npz", **data)
    command = ["calibrate", model, "--calib", folder / "calib.npz", "-o", folder / "o.onnx", "--overwrite"]
    done = cli(*command, "--json", folder / "r.json", "--device", "cpu", *words)
    report = json.loads((folder / "r.json").read_text()) if (folder / "r.json").exists() else {}
    return done, report


@pytest.mark.slow
def test_copies_choose_what_the_distinct_samples_choose(model: Path, tmp_path: Path) -> None:
    _, alone = calibrated(model, tmp_path, drawn(250, 1, 0, 3))
    done, report = calibrated(model, tmp_path, drawn(250, 4, 0.02, 3))
    assert done.exit_code == 0, done.output
    assert report["map"] == alone["map"]
    after, expected = report["comparison"]["after"], alone["comparison"]["after"]
    assert after["accuracy"] == pytest.approx(expected["accuracy"], abs=0.02)
    assert after["nll"] == pytest.approx(expected["nll"], abs=0.02)
    # 1,000 rows know no more than 250
    nll, expected_nll = (each["comparison"]["differences"]["nll"] for each in (report, alone))
    assert nll["high"] - nll["low"] == pytest.approx(expected_nll["high"] - expected_nll["low"], rel=0.1)
    notes = "\n".join(report["notes"])
    assert re.search(r"7[0-9]{2} samples \(7.*%\) are (near )?copies of others", notes)
    assert "copies share a fold" in notes


@pytest.mark.slow
def test_an_implausible_gain_is_refused_and_held_out_samples_settle_it(model: Path, tmp_path: Path) -> None:
    """Copies too unlike each other to be recognised."""
    copies = drawn(250, 4, 0.4, 3)
    done, _ = calibrated(model, tmp_path, copies)
    assert done.exit_code == 4, done.output
    assert "implausible" in done.output
    assert "--eval" in done.output
    assert not (tmp_path / "o.onnx").exists()
    np.savez(tmp_path / "new.npz", **drawn(1000, 1, 0, 9))
    done, _ = calibrated(model, tmp_path, copies, "--eval", tmp_path / "new.npz")
    assert done.exit_code != 4, done.output
    assert "implausible" not in done.output


def test_near_copies_of_calibration_samples_cannot_judge(model: Path, tmp_path: Path) -> None:
    frames = drawn(120, 6, 0.02, 3)
    first = np.arange(720) % 6 < 3
    np.savez(tmp_path / "held.npz", **{name: values[~first] for name, values in frames.items()})
    calib = {name: values[first] for name, values in frames.items()}
    done, _ = calibrated(model, tmp_path, calib, "--eval", tmp_path / "held.npz")
    assert done.exit_code == 4, done.output
    assert " of 360 samples" in done.output
    assert "are near copies of calibration samples" in done.output
    words = ["--search", "none", "--map", "ts", "--eval", tmp_path / "held.npz", "--limit", "overlap=100"]
    allowed, _ = calibrated(model, tmp_path, calib, *words)
    assert allowed.exit_code == 0, allowed.output
