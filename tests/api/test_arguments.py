"""Keywords of the public functions are the fields of their values, and come to the same; progress that is shown."""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tna_onnx
from tests.conftest import Small
from tests.support import PLAIN, with_options
from tna_onnx.api import arguments
from tna_onnx.api.compare import named_models
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError, in_words_of_python
from tna_onnx.fields import check_settings, setting, settings_of
from tna_onnx.pipeline.settings import Settings
from tna_onnx.render import progress_bars
from tna_onnx.results.gates import Gates

FUNCTIONS = ("calibrate", "compare", "evaluate", "features", "fit", "guard", "shift", "study", "verify")


def required(name: str) -> list[str]:
    parameters = inspect.signature(getattr(tna_onnx, name)).parameters.values()
    return ["x" for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]


@pytest.mark.parametrize("name", [*FUNCTIONS, "card", "edit_decision", "inspect"])
def test_every_argument_is_described(name: str) -> None:
    function = getattr(tna_onnx, name)
    described = re.search(r"^Args:\n((?: .*\n)+)", inspect.getdoc(function) or "", re.MULTILINE)
    lines = re.findall(r"^    (\w+(?:, \w+)*): ", described[1], re.MULTILINE)
    assert sorted(", ".join(lines).split(", ")) == sorted(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "fit"])
def test_a_keyword_that_does_not_exist_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword .*did you mean 'classes'"):
        getattr(tna_onnx, name)(*required(name), clases="names.txt")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_field_as_a_keyword_is_refused_with_the_dataclass_that_has_it(name: str) -> None:
    """Of each field of each dataclass that a function takes, and what the message says to type is right."""
    function = getattr(tna_onnx, name)
    holders = arguments.holders_of(function)
    assert holders
    for holder, cls in holders.items():
        for field in settings_of(cls):
            if field not in inspect.signature(function).parameters:
                with pytest.raises(TypeError, match=rf"{name}\(\) .*'{field}'.*{holder}=tna_onnx\.{cls.__name__}\b"):
                    function(*required(name), **{field: 1})
        assert getattr(tna_onnx, cls.__name__) is cls


@pytest.mark.parametrize(
    ("low", "high", "number", "ends"),
    [(None, 5, 6, "at most 5"), (None, 0, 1, "at most 0"), (1, None, 0, "at least 1"), (-1, 0, 1, "from -1 to 0")],
)
def test_a_number_outside_of_its_range_is_refused_whichever_ends_there_are(
    low: float | None, high: float | None, number: int, ends: str
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Ranged:
        rank: int = setting(low or high or 0, "A number", low=low, high=high)

    with pytest.raises(UsageError, match=rf"rank must be {ends}; got {number}"):
        check_settings(Ranged(number))
    check_settings(Ranged())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_value_given_twice_is_refused(name: str) -> None:
    function = getattr(tna_onnx, name)
    given = {"map": "ts", "search": "none", "predictions": "keep", "seed": 3, "labels": "l.csv", "preset": "imagenet",
             "classes": ["a"], "add": ["set"], "coverage": 90.0, "risk": 1.0, "repeats": 3,
             "target_prior": "uniform", "source_prior": "uniform"}  # fmt: skip
    for keyword in sorted(given.keys() & inspect.signature(function).parameters.keys()):
        field = "preprocessing" if keyword == "preset" else keyword
        holder, cls = next((h, c) for h, c in arguments.holders_of(function).items() if field in settings_of(c))
        words = dict(zip(inspect.signature(function).parameters, required(name), strict=False))
        samples = {"samples": "d.npz"} if holder == "data" and cls is Data and "calib" not in words else {}
        words |= {holder: cls(**samples, **{field: given[keyword]}), keyword: given[keyword]}
        if name == "compare":
            words["models"] = ["a.onnx", "b.onnx"]
        if name == "features":
            words["cache"] = "store"
        with pytest.raises(UsageError, match=f"^{field} is given twice"):
            function(**words)


def test_keywords_join_the_dataclass_and_what_is_not_given_stays() -> None:
    joined = arguments.combined(Settings(bins=9), Settings, map="ts", seed=None)
    assert joined == Settings(bins=9, map="ts")
    # what is added depends on whether there is a decision: neither way of giving it says more
    assert arguments.combined(tna_onnx.GuardSettings(decide="f1"), tna_onnx.GuardSettings, add=["set"]).add == ("set",)


def test_what_an_output_holds_is_one_of_five_words(small: Small) -> None:
    with pytest.raises(UsageError, match="output_kind 'softmax' is not known; expected logits, probabilities"):
        tna_onnx.evaluate(small.model, small.calib, model_options=tna_onnx.ModelOptions(output_kind="softmax"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("classes", 3), ("columns", 3), ("label_column", 0.5), ("data_root", 3), ("limits", 3), ("skip_bad", "no"),
     ("expect_accuracy", "76"), ("json", 3), ("device", 3), ("progress", 3),
     ("min_recall", [1]), ("model_limits", {}), ("max_nll", [1.0]), ("min_accuracy", True), ("bins", 14.0)],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be .*, got .* \({type(value).__name__}\)$"):
        with_options(tna_onnx.evaluate, "m.onnx", "data.npz", **{name: value})
    if name in {field.name for field in dataclasses.fields(Data)}:
        with pytest.raises(UsageError, match=rf"^{name} must be "):
            Data("data.npz", **{name: value})


@pytest.mark.slow
def test_scalars_of_numpy_are_numbers(small: Small, tmp_path: Path) -> None:
    """They come from grids of settings, and the file records what it was made with."""
    plain = {"search": "none", "map": "ts", "seed": 3, "bins": 10, "min_accuracy": 1.5, "min_recall": {"0": 0.25}}
    scalars: dict[str, Any] = {"seed": np.int64(3), "bins": np.uint8(10), "min_accuracy": np.float32(1.5)}
    scalars["min_recall"] = {"0": np.float16(0.25)}
    for name, words in (("plain", plain), ("numpy", plain | scalars)):
        result = with_options(tna_onnx.calibrate, small.model, small.calib, output=tmp_path / f"{name}.onnx", **words)  # type: ignore[arg-type]
        assert json.loads(json.dumps(result.to_dict()))["settings"]["seed"] == 3
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "numpy.onnx").read_bytes()
    guard = tna_onnx.GuardSettings(coverage=np.float32(87.5), delta=np.int8(10), allow_empty=np.bool_(True))  # type: ignore[arg-type]
    assert guard == tna_onnx.GuardSettings(coverage=87.5, delta=10, allow_empty=True)
    assert {type(value) for value in dataclasses.asdict(guard).values()} <= {str, int, float, bool, tuple}


def test_held_out_data_are_read_like_the_calibration_data_unless_they_say_otherwise() -> None:
    calib = Data("calib/", labels="calib.csv", label_column="y", expect_accuracy=90)
    plain = arguments.held_out_of("eval/", calib, {"labels": "calib.csv"})
    assert (plain.samples, plain.labels, plain.label_column, plain.expect_accuracy) == ("eval/", None, "y", None)
    own = Data("eval.parquet")
    held_out = arguments.held_out_of(own, calib, {"skip_bad": True, "labels": "calib.csv"})
    assert (held_out.skip_bad, held_out.labels) == (True, None)
    assert arguments.held_out_of(None, calib, {}) is None


def test_how_samples_are_read_holds_none(small: Small) -> None:
    with pytest.raises(UsageError, match="data says how samples are read"):
        tna_onnx.calibrate(small.model, small.calib, data=Data(small.calib))
    with pytest.raises(UsageError, match="no samples"):
        tna_onnx.calibrate(small.model, Data(label_column="y"))


def test_the_loss_of_accuracy_is_a_setting_and_a_gate() -> None:
    stated = Settings(max_accuracy_drop=1.5)
    assert stated.for_search.max_accuracy_drop == 0.015
    assert arguments.gates_of(None, stated).max_accuracy_drop == 1.5
    assert arguments.gates_of(Gates(max_ece=5), Settings()).max_accuracy_drop == Settings().max_accuracy_drop
    assert arguments.gates_of(Gates(max_accuracy_drop=2), Settings()).max_accuracy_drop == 2


def test_gates_of_a_change_are_refused_where_there_is_none(small: Small) -> None:
    with pytest.raises(UsageError, match="evaluate has no gate require; expected max_ece"):
        tna_onnx.evaluate(small.model, small.calib, gates=Gates(require="improvement"))


# ---- What the functions write besides their results: the same files as the command line


def test_calibrate_writes_what_the_command_line_writes(small: Small, tmp_path: Path) -> None:
    page, file, folder = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "figures"
    files = {"output": tmp_path / "o.onnx", "report": page, "json": file, "figures": folder}
    report = tna_onnx.calibrate(small.model, small.calib, **files, **PLAIN)
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()
    stored = json.loads(file.read_text())
    assert (stored["verdict"], "details" in stored) == (report.verdict, True)
    assert {path.suffix for path in folder.iterdir()} == {".svg"}


@pytest.mark.slow
def test_a_missed_gate_is_written_too(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    gates = tna_onnx.Gates(max_ece=0)
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", json=file, gates=gates, **PLAIN)
    assert json.loads(file.read_text())["missed"] != []
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.evaluate(small.model, small.calib, device="cpu", json=file, gates=gates)
    assert json.loads(file.read_text())["missed"] != []


def test_results_do_not_stand_for_other_files(small: Small, tmp_path: Path) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    model.write_bytes(small.model.read_bytes())
    data.write_bytes(small.calib.read_bytes())
    new, names = tmp_path / "new.onnx", tmp_path / "names.txt"
    calls: tuple[Any, ...] = (
        lambda: tna_onnx.guard(model, data, output=new, json=model),
        lambda: tna_onnx.shift(model, data, target_prior="uniform", output=new, json=new),
        lambda: tna_onnx.calibrate(model, data, output=new, json=data),
        lambda: tna_onnx.calibrate(model, data, output=new, json=tmp_path / "r", report=tmp_path / "r"),
        lambda: tna_onnx.verify(model, model, json=model),
        lambda: tna_onnx.compare([model, model], data, report=model),
        lambda: tna_onnx.features(model, data, tmp_path / "cache", json=data),
        lambda: tna_onnx.evaluate(model, data, classes=names, json=names),
    )
    for call in calls:
        with pytest.raises(UsageError, match="is one of the other files"):
            call()
    assert model.read_bytes() == small.model.read_bytes()
    assert data.read_bytes() == small.calib.read_bytes()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("run--final.npz: no such file", "run--final.npz: no such file"),
        ("a/--b: use --dry-run to write nothing", "a/--b: use dry_run to write nothing"),
        ("use --teacher without it (--add), or say --map none", "use teacher without it (add), or say map='none'"),
        ("add --resize 256x224 --batch-size 1.", "add resize='256x224', batch_size=1."),
    ],
)
def test_messages_keep_names_of_files_and_words_that_are_no_values(message: str, expected: str) -> None:
    def fails() -> None:
        raise UsageError(message)

    with pytest.raises(UsageError) as refusal:
        in_words_of_python(fails)()
    assert str(refusal.value) == expected


def test_classes_of_a_gate_may_be_numbers() -> None:
    assert Gates(min_recall={3: 0.5}).min_recall == {"3": 0.5}  # type: ignore[dict-item]


def test_progress_is_shown_or_told(
    small: Small, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars.Lines.__init__, "__defaults__", (30.0, 0.0))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=True)
    assert "evaluate: " in capfd.readouterr().err
    steps: list[str] = []
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=lambda stage, *_: steps.append(stage))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=False)
    assert set(steps) == {"evaluate"}
    assert capfd.readouterr() == ("", "")


# --- Names of models that are compared: as short as tells them apart


def names(*paths: Any) -> list[str]:
    return list(named_models(list(paths)))


def test_a_folder_of_figures_is_no_file(small: Small) -> None:
    with pytest.raises(UsageError, match="expected the name of a folder"):
        tna_onnx.calibrate(small.model, small.calib, figures=small.calib, dry_run=True)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.onnx", "b.onnx"], ["a.onnx", "b.onnx"]),
        (["one/m.onnx", "two/m.onnx", "n.onnx"], ["one/m.onnx", "two/m.onnx", "n.onnx"]),
        (["x/1/m.onnx", "y/1/m.onnx"], ["x/1/m.onnx", "y/1/m.onnx"]),
        (["m.onnx", Path("m.onnx")], ["m.onnx (1)", "m.onnx (2)"]),
        ([b"", b"", "m.onnx"], ["model in memory (1)", "model in memory (2)", "m.onnx"]),
    ],
)
def test_names_by_hand(paths: list[Any], expected: list[str]) -> None:
    assert names(*paths) == expected


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join), min_size=2, max_size=6))
def test_names_differ_and_end_their_paths(paths: list[str]) -> None:
    found = names(*paths)
    assert len(set(found)) == len(found)
    for path, name in zip(paths, found, strict=True):
        assert Path(path).absolute().as_posix().endswith(name.split(" (")[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [([], "got 0"), (["a.onnx"], "got 1"), ({"a": "a.onnx"}, "got 1"), ("a.onnx", "got str"), (7, "got int")],
)
def test_one_model_is_not_enough(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named_models(wrong)


def test_no_model_is_dropped_for_its_name(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("m.onnx", "m.onnx", "m.onnx (2)")]
    with pytest.raises(UsageError, match="called alike"):
        named_models(paths)
