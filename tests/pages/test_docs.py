"""README.md and docs/ are true: every command and every Python block runs, in order, page by page; the site builds.

A page runs in a folder of its own that holds what the page takes for granted (`worlds.py`). `documents.py`
says how a page marks what cannot run. A block that begins with `# NAME.py` or `# NAME.toml` is a file.
"""

import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import tna_onnx
from tests.conftest import ROOT, draw_as_users
from tests.pages.documents import PAGES, SHELL, Block, blocks, commands, joined, name_of
from tests.pages.worlds import WORLDS, World, quick
from tests.support import cli, with_options
from tna_onnx.cli.command import group
from tna_onnx.data.formats import DATA_FORMATS

# Languages of blocks that hold nothing to run.
SHOWN = ("text", "json", "yaml", "toml", "diff", "{toctree}", "{eval-rst}")

# First line of a block that is a file.
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")

# Forms of README.md's set-up commands: .ci/run executes them in a fresh environment.
INSTALL = re.compile(r"python3 -m venv .venv && .venv/bin/pip install (-e )?'\.\[\w+\]' && ")

# Page -> the page that shows its output in full, of the same command with a report.
SAME_OUTPUT = {"README.md": "docs/tutorial.md"}

NOT_RUN = {
    "README.md": 1,
    "docs/data.md": 3,
    "docs/how-to/binary.md": 1,
    "docs/how-to/cluster.md": 3,
    "docs/how-to/gpu.md": 3,
    "docs/how-to/hugging-face.md": 5,
    "docs/how-to/pipelines.md": 2,
    "docs/how-to/pytorch.md": 1,
    "docs/how-to/sharing.md": 5,
    "docs/how-to/systems.md": 1,
    "docs/how-to/text.md": 1,
    "docs/how-to/serving.md": 2,
    "docs/how-to/trackers.md": 2,
    "docs/contributing.md": 4,
    "docs/tutorial.md": 2,
}
"""Page -> how many commands, and blocks of Python, no test executes; each is marked on its page, with the reason."""


@dataclass
class Run:
    """A page while it is executed: what it takes for granted, its Python names, what its last block printed."""

    world: World
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""

    def block(self, block: Block, *, shown: bool = False) -> None:
        """Execute a block, as it is written if its output is shown, or compare it with what the one before printed."""
        if block.remark.startswith("output"):
            assert shape(block.text) == shape(self.printed), f"{block.where}: prints now\n{self.printed}"
            if "within 5 %" in block.remark:
                assert numbers(self.printed) == pytest.approx(numbers(block.text), rel=0.05), f"{block.where}"
        elif re.match(FILE, block.text):
            Path(re.match(FILE, block.text)[1]).write_text(block.text, encoding="utf-8")
        elif block.language in SHELL:
            self.shell(block, shown)
        elif block.language == "python":
            self.python(block)

    def shell(self, block: Block, shown: bool) -> None:
        """Run each line: in this process if it is `tna-onnx` and nothing else, in bash otherwise."""
        lines = [INSTALL.sub("", line).removeprefix(".venv/bin/") for line in commands(block.text)]
        for k, line in enumerate(lines):
            expected = int(block.remark_after("exit code") or 0) if k == len(lines) - 1 else 0
            if re.search(r"[|&;<>$]", line) or not line.startswith("tna-onnx "):
                self.bash(line, expected, block)
                continue
            words = shlex.split(line)[1:]
            result = cli(*(words if shown else self.world.adapt(words)))
            assert result.exit_code == expected, f"{block.where}: {line}\n{result.output}"
            self.world.check(line, result.output)
            self.printed = result.output if result.exit_code else result.stdout  # and not how far a slow run was

    def bash(self, script: str, expected: int, block: Block) -> None:
        here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-e", "-c", script],
            env={**os.environ, "PATH": here},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, f"{block.where}: {script}\n{done.stdout}{done.stderr}"
        self.printed = done.stdout + done.stderr if expected else done.stdout  # and not how far a slow run was

    def python(self, block: Block) -> None:
        """Execute in the names of the page."""
        self.names.update(self.world.names_for(block.text))
        with pytest.MonkeyPatch.context() as patch:
            printed: list[str] = []
            patch.setitem(self.names, "print", lambda *values: printed.append(" ".join(map(str, values))))
            exec(compile(block.text, block.where, "exec"), self.names)
        self.printed = "\n".join(printed)


NUMBER = re.compile(r"[+-]?\d[\d,.]*(?:e[+-]?\d+)?")


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "").rstrip(".")) for number in NUMBER.findall(text)]


def shape(text: str) -> list[str]:
    """Lines of a text with its numbers and the spaces around them left out: last digits differ between machines."""
    lines = [NUMBER.sub("#", line) for line in text.strip().splitlines()]
    return [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("tna-onnx evaluate no.onnx --data no.npz", ""),
        ("false", ""),
        ("true", "exit code: 1"),
        ("tna-onnx --help", "exit code: 1"),
    ],
)
def test_a_command_that_ends_otherwise_is_noticed(text: str, remark: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        Run(World()).block(Block("page.md", 1, "sh", text, remark))


@pytest.mark.parametrize(
    ("text", "remark"),
    [("ECE 4.7 %", "output, numbers within 5 %"), ("AdaECE 4.0 %", "output"), ("ECE 4 %\nmore", "output")],
)
def test_an_output_that_differs_is_noticed(text: str, remark: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(World())
    run.block(Block("page.md", 1, "python", "print(f'ECE {4.0:.1f} %')", ""))
    run.block(Block("page.md", 2, "text", "ECE 4.1 %", "output, numbers within 5 %"))
    with pytest.raises(AssertionError):
        run.block(Block("page.md", 2, "text", text, remark))


def runnable(page: Path) -> bool:
    return any(block.language in (*SHELL, "python") for block in blocks(page))


# Pages of several seconds: README.md and the other how-to pages show nearly all commands without waiting for `-m slow`.
_HOW_TO = (
    "binary ci-gate cluster decisions groups hugging-face images multi-label prior-shift pytorch quantized serving "
    "tabular thresholds trackers weights without-labels"
)
_OTHERS = "cheat-sheet data tutorial explanation/choosing explanation/paper explanation/what-ece-says"
SLOW = {
    *(f"docs/how-to/{name}.md" for name in _HOW_TO.split()),
    *(f"docs/{name}.md" for name in _OTHERS.split()),
    *("docs/reference/calibrate.md", "docs/reference/python.md"),
}


def marked(page: Path) -> Any:
    """Return a page as a parameter of a test."""
    marks = [pytest.mark.slow] if name_of(page) in SLOW else []
    if page.stem in ("binary", "hugging-face", "pytorch"):  # exporters warn about themselves
        marks.append(pytest.mark.filterwarnings("ignore"))
    return pytest.param(page, id=name_of(page), marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if runnable(page)])
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all blocks of a page in a folder, and compare the outputs that it shows."""
    monkeypatch.chdir(tmp_path)
    prepare: Callable[[], World] = WORLDS.get(name_of(page), World)
    run = Run(prepare())
    monkeypatch.setattr(tna_onnx, "calibrate", quickly(tna_onnx.calibrate))
    found = [block for block in blocks(page) if not block.remark.startswith(("not run:", "adding "))]
    twin = SAME_OUTPUT.get(name_of(page))
    if any(block.remark.startswith("output") for block in found):
        draw_as_users(monkeypatch)
    for block, after in itertools.zip_longest(found, found[1:]):
        if twin and block.remark.startswith("output"):
            lines = block.text.splitlines()
            shown = [set(other.text.splitlines()) for other in blocks(ROOT / twin)]
            assert any(other.issuperset(lines) for other in shown), f"{block.where}: {twin} shows another"
            continue
        run.block(block, shown=twin is None and after is not None and after.remark.startswith("output"))
    for value in run.names.values():
        if isinstance(value, np.lib.npyio.NpzFile):
            value.close()  # as the end of the program would


def quickly(calibrate: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with quick settings where a call says nothing else."""

    @functools.wraps(calibrate)
    def changed(*values: Any, **words: Any) -> Any:
        if "settings" in words:
            return calibrate(*values, **{"device": "cpu"} | words)
        return with_options(calibrate, *values, **quick(words) | words)

    return changed


def test_what_is_not_run_is_counted() -> None:
    found: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks(page):
            if block.remark_after("not run") is not None:
                assert block.remark_after("not run"), f"{block.where}: say why it is not run"
                found[block.page] += len(commands(block.text)) if block.language in SHELL else 1
    assert found == NOT_RUN


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language in (*SHELL, "python", *SHOWN), f"{block.where}: how is {block.language!r} to be run?"
            assert (
                re.fullmatch(
                    r"|output(, numbers within 5 %|, in part)?|(not run|adding a \w+): .+|exit code: \d+", block.remark
                )
                or "generated" in block.remark
            )


def test_every_command_is_in_a_block_that_runs() -> None:
    """A command elsewhere (indented, or in a configuration file that a page shows) is run by the page as well."""
    verbs = "|".join(group.commands)
    for page in PAGES:
        text, found = joined(page.read_text(encoding="utf-8")), list(blocks(page))
        known = {line for block in found if block.language in SHELL for line in commands(block.text)}
        loose = re.findall(rf"^(?:    )?(?:[\s-]*run:\s*)?\s*(?:\$ )?(tna-onnx (?:{verbs}) \S.*)$", text, re.MULTILINE)
        assert set(loose) <= known, f"{name_of(page)}: {set(loose) - known}"


def test_every_flag_exists() -> None:
    options = [p for command in group.commands.values() for p in command.params if isinstance(p, click.Option)]
    known = {
        "--help",
        "--help-all",
        "--version",
        *("--runs", "--sizes", "--splits"),  # of a benchmark
        *(name for option in options for name in (*option.opts, *option.secondary_opts)),
    }
    for page in PAGES:
        if page.parent.name == "results" or page.name in ("compatibility.md", "contributing.md", "paper.md"):
            continue  # these are about benchmarks and other programs
        text = page.read_text(encoding="utf-8")
        for block in blocks(page):
            if block.remark_after("not run") is not None:
                text = text.replace(block.text, "")
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w.])", text))
        assert flags <= known, f"{name_of(page)}: {flags - known}"


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(
            r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        ):
            if not re.match(r"\w+:|#", target):
                assert (page.parent / target.partition("#")[0]).exists(), f"{name_of(page)}: {target}"


@pytest.mark.slow
def test_the_examples_of_python_are_typed(tmp_path: Path) -> None:
    """A type checker takes each call of the page, and refuses a keyword that a function does not have."""
    pytest.importorskip("mypy")
    found = [block.text for block in blocks(ROOT / "docs/reference/python.md") if block.language == "python"]
    wrong = 'tna_onnx.calibrate(model, calib, angle_step=3)\ntna_onnx.calibrate(model, calib, map="tss")\n'
    (tmp_path / "page.py").write_text("\n".join([*found, wrong]), encoding="utf-8")
    words = ["--strict", "--no-error-summary", "--cache-dir", ROOT / ".mypy_cache", tmp_path / "page.py"]
    done = subprocess.run([sys.executable, "-m", "mypy", *words], capture_output=True, text=True, check=False, cwd=ROOT)
    errors = [line for line in done.stdout.splitlines() if "page.py" in line and " error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert ["call-arg" in errors[0], "arg-type" in errors[1]] == [True, True], errors


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name)
    words = ["-W", "--keep-going", "-n", "-E", "-d", tmp_path / "cache", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    pages = {
        path.relative_to(tmp_path / "site").with_suffix(".md").as_posix()
        for path in (tmp_path / "site").rglob("*.html")
    }
    assert {name_of(page).removeprefix("docs/") for page in PAGES[1:]} <= pages
    reference = tmp_path / "site/reference"
    functions = (reference / "functions.html").read_text(encoding="utf-8")
    for name, command in group.commands.items():
        page = (reference / f"commands/{name}.html").read_text(encoding="utf-8")
        assert all(option.opts[0] in page for option in command.params if isinstance(option, click.Option))
        assert f'id="tna_onnx.{name}"' in functions


def test_the_table_of_data_names_every_format() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    table = page[page.index("| format |") : page.index("If a library is missing")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(DATA_FORMATS)


# --- The notebook has the cells of its page, and ran to its end


FOLDER = ROOT / "docs/how-to"


def test_the_notebook_has_the_cells_of_the_page() -> None:
    cells = json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.text.strip() for block in blocks(FOLDER / "notebook.md") if block.language == "python"]


def test_every_cell_ran() -> None:
    cells = json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert {output["output_type"] for cell in code for output in cell["outputs"]} == {"stream"}
