"""Settings from files and the environment, through the real command line: which one wins, and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT, Small
from tests.support import PLAIN, cli, ok, refused, words_of
from tna_onnx.cli.command import group

CONFIGURABLE = {n: c for n, c in group.commands.items() if any(p.name == "config" for p in c.params)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder that is a home of its own, without settings in the environment."""
    for name in [name for name in os.environ if name.startswith("TNA_ONNX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # the home of Windows
    monkeypatch.setenv("TNA_ONNX_DEVICE", "cpu")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def bins(small: Small, *flags: object) -> int:
    """Run `evaluate` and return the number of bins that it used."""
    ok("evaluate", small.model, "--data", small.test, "--json", "r.json", *flags)
    return int(json.loads(Path("r.json").read_text())["metrics"]["bins"])


# Order


def test_the_order_of_the_sources(small: Small, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bins(small) == 15
    (folder / "pyproject.toml").write_text("[tool.tna-onnx]\nbins = 3\n")  # is not read
    assert bins(small) == 15
    (folder / "tna.toml").write_text("bins = 5\n")
    assert bins(small, "--config", "tna.toml") == 5
    (folder / "tna.toml").write_text("bins = 5\n[evaluate]\nbins = 6\n[calibrate]\nbins = 60\n")
    assert bins(small, "--config", "tna.toml") == 6
    monkeypatch.setenv("TNA_ONNX_BINS", "7")
    assert bins(small, "--config", "tna.toml") == 7
    monkeypatch.setenv("TNA_ONNX_EVALUATE_BINS", "8")
    monkeypatch.setenv("TNA_ONNX_CALIBRATE_BINS", "80")
    assert bins(small, "--config", "tna.toml") == 8
    assert bins(small, "--config", "tna.toml", "--bins", "9") == 9
    assert bins(small, "--bins", "9", "--config", "tna.toml") == 9  # wherever --config stands
    for name in ("TNA_ONNX_BINS", "TNA_ONNX_EVALUATE_BINS"):
        monkeypatch.setenv(name, "")  # empty is not set
    assert bins(small, "--config", "tna.toml") == 6
    monkeypatch.setenv("TNA_ONNX_CONFIG", "tna.toml")
    assert bins(small) == 6


def test_settings_of_samples_do_not_keep_verify_from_running_without_any(small: Small, folder: Path) -> None:
    code = cli("verify", small.model, small.model).exit_code
    (folder / "tna.toml").write_text('max-ece = 2\npreset = "imagenet"\nscale = 1\n')
    words = ["verify", small.model, small.model, "--config", "tna.toml"]
    assert cli(*words).exit_code == code != 2
    refused(2, "--max-nll is about samples", *words, "--max-nll", "1")


def test_calibrate_with_everything_in_a_file(small: Small, folder: Path) -> None:
    (folder / "settings").mkdir()
    (folder / "settings/calib.npz").write_bytes(small.calib.read_bytes())
    (folder / "settings/tna.toml").write_text(
        'device = "cpu"\n[calibrate]\ncalib = "calib.npz"\noutput = "../o.onnx"\nmap = "bias"\nsearch = "none"\n'
        'json = "r.json"\nensemble_size = 12\nmax-ece = 50\nrequire = "improvement"\nbins = 12\n'
        f'eval = "{small.test.as_posix()}"\n[evaluate]\nmin-accuracy = 100\n'
    )
    result = cli("calibrate", small.model, "--config", "settings/tna.toml")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert (folder / "o.onnx").exists()  # ../o.onnx from the file's folder
    report = json.loads((folder / "settings/r.json").read_text())
    assert report["map"] == "bias"
    assert (report["settings"]["gates"]["max_ece"], report["settings"]["gates"]["require"]) == (50, "improvement")
    assert report["settings"]["bins"] == 12
    result = cli(
        "calibrate", small.model, "--config", "settings/tna.toml", "--max-ece", "0", "--map", "ts", "-o", "p.onnx"
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --max-ece 0 missed")
    assert not (folder / "p.onnx").exists()


# Values


def test_paths_in_a_file_are_relative_to_it_and_urls_are_not(small: Small, folder: Path) -> None:
    (folder / "a/data").mkdir(parents=True)
    (folder / "a/data/test.npz").write_bytes(small.test.read_bytes())
    (folder / "a/tna.toml").write_text('[evaluate]\ndata = "data/test.npz"\n')
    ok("evaluate", small.model, "--config", "a/tna.toml")
    (folder / "a/tna.toml").write_text('[evaluate]\ndata = "memory://none.npz"\n')
    result = cli("evaluate", small.model, "--config", "a/tna.toml")
    assert result.exit_code != 0
    assert "memory://none.npz" in result.stderr
    assert "a/memory" not in result.stderr


# Errors

BAD_FILES = {
    "unknown key": ("binns = 3\n", "tna.toml: unknown key 'binns'; expected"),
    "unknown key in a table": (
        "[calibrate]\nmax_ecee = 3\n",
        "tna.toml: unknown key 'max_ecee' in [calibrate]; expected",
    ),
    "key of another command": ("[evaluate]\nseed = 3\n", "tna.toml: unknown key 'seed' in [evaluate]"),
    "unknown table": ("[evaluat]\nbins = 3\n", "tna.toml: unknown table [evaluat]; expected one of calibrate"),
    "twice": ("max-ece = 3\nmax_ece = 3\n", "tna.toml: 'max-ece' is given twice"),
    "number for a switch": ("skip-bad = 7\n", "tna.toml: skip-bad: '7' is not a valid boolean"),
    "number for a word": ("color = 1\n", "tna.toml: color: '1' is not one of"),
    "choice": ('color = "zip"\n', "tna.toml: color: 'zip' is not one of 'rgb', 'bgr'"),
    "list": ('mean = ["a"]\n', "tna.toml: mean: expected numbers with commas between them"),
    "no TOML": ("bins: 3\n", "tna.toml: is not valid TOML: "),
    "not UTF-8": (b"# \xff\n", "tna.toml: is not valid TOML: "),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(small: Small, folder: Path, case: str) -> None:
    text, message = BAD_FILES[case]
    (folder / "tna.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(2, message, "evaluate", small.model, "--data", small.test, "--config", "tna.toml", "--json", "r.json")
    assert not (folder / "r.json").exists()


def test_bad_variables(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["evaluate", small.model, "--data", small.test]
    for name, value, message in (
        ("TNA_ONNX_BINS", "many", "TNA_ONNX_BINS: 'many' is not a valid integer"),
        ("TNA_ONNX_MAX_NLL", "nan", "TNA_ONNX_MAX_NLL: 'nan' is not a valid number"),
        ("TNA_ONNX_EVALUATE_MAX_ECE", "-1", "TNA_ONNX_EVALUATE_MAX_ECE: -1.0 is not in the range 0<=x<=100"),
        ("TNA_ONNX_MAX_ECCE", "1", "TNA_ONNX_MAX_ECCE: unknown setting; expected"),
        ("TNA_ONNX_NO_FAIL_IF_WORSE", "1", "TNA_ONNX_NO_FAIL_IF_WORSE: unknown setting"),
        ("TNA_ONNX_CONFIG", "none.toml", "none.toml: cannot be read"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            refused(2, message, *command)


def test_variables_do_not_concern_what_reads_no_settings(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TNA_ONNX_ZEAL", "1")
    refused(2, "TNA_ONNX_ZEAL: unknown setting", "evaluate", small.model, "--data", small.test)
    assert cli("inspect", small.model).stderr == ""


# All commands


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_every_flag_is_a_key_and_a_variable(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of each command takes its own default, or a value of its type, from both."""
    command = CONFIGURABLE[name]
    monkeypatch.delenv("TNA_ONNX_DEVICE")
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in ("config", "help")]
    options = {next(o[2:] for o in each.opts if o.startswith("--")): each for each in own}
    values = {flag: _valid(option) for flag, option in options.items()}
    rows = [f"{flag.replace('-', '_')} = {value}\n" for flag, value in values.items()]
    (folder / "tna.toml").write_text(f"[{name}]\n{''.join(rows)}")
    for source, words in (("DEFAULT_MAP", ["--config", "tna.toml"]), ("ENVIRONMENT", [])):
        if source == "ENVIRONMENT":
            for flag, value in values.items():
                variable = f"TNA_ONNX_{name}_{flag}".upper().replace("-", "_")
                monkeypatch.setenv(variable, value.strip("[]") if value.startswith("[") else value.strip('"'))
        parent = click.Context(group, info_name="tna-onnx")
        ctx = command.make_context(name, words, parent=parent, resilient_parsing=True)
        for flag, option in options.items():
            found = ctx.get_parameter_source(str(option.name))
            assert found == click.core.ParameterSource[source], (flag, source)


LIMITS = {"limits": "expansion=7,inlined-nodes=7", "ray_options": "num_cpus=1"}


def _valid(option: click.Option) -> str:
    """Return a TOML value that an option takes."""
    if option.is_flag:
        return "true"
    if option.name in LIMITS:
        return json.dumps(LIMITS[str(option.name)])
    if isinstance(option.type, click.Choice):
        return json.dumps(str(option.type.choices[0]))
    if isinstance(option.type, click.types.IntParamType):
        return "7"
    if isinstance(option.type, click.types.FloatParamType):
        return "60.5"
    return "7" if option.callback is not None else '"7"'


def test_the_file_in_the_documentation(folder: Path) -> None:
    root = ROOT
    text = (root / "docs/how-to/ci-gate.md").read_text(encoding="utf-8")
    (folder / "tna.toml").write_text(re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0])
    shutil.copytree(root / "models/digits", folder / "models/digits", ignore=shutil.ignore_patterns("*.tna.onnx"))
    result = ok("calibrate", "models/digits/model.onnx", "--config", "tna.toml", "-v", "--dry-run", *words_of(PLAIN))
    assert "setting  max-ece = 3  (tna.toml)" in result.stderr
