"""Settings of every kind for every option, from a file and from the environment, through the parser of a real command.

What may be raised: `TnaError`, and click's own errors with exit code 2.
"""

import json
import math
import os
from pathlib import Path
from random import Random
from typing import Any

import click

from tests.fuzz.mutate import VALUES, mutated_text
from tna_onnx.cli.command import group
from tna_onnx.cli.config import configurable_commands, options_by_flag
from tna_onnx.errors import UsageError

WORDS: list[Any] = [*VALUES, "auto", "inf", "ts", 0.5, 7, "a=b", "expansion=7", "overlap=nan", "1,2,3", ["1", "2"]]
REQUIRED = {
    "calibrate": ["m.onnx", "--calib", "a.npz"],
    "compare": ["m.onnx", "n.onnx", "--data", "a.npz"],
    "evaluate": ["m.onnx", "--data", "a.npz"],
    "features": ["m.onnx", "--data", "a.npz", "--cache", "c"],
    "fit": ["a.npz", "-o", "m.onnx"],
    "guard": ["m.onnx", "--calib", "a.npz"],
    "shift": ["m.onnx", "--calib", "a.npz"],
    "study": ["m.onnx", "--calib", "a.npz", "--eval", "b.npz", "--out", "study"],
    "verify": ["m.onnx", "n.onnx"],
}


def case(k: int, seed: int, folder: Path) -> None:
    """Run one case by its number."""
    random = Random(f"{seed} {k}")
    root = click.Context(group, info_name="tna-onnx")
    commands = configurable_commands(root)
    name = random.choice(sorted(commands))
    flags = sorted(options_by_flag(commands[name]))
    file = folder / "a.toml"
    text = _table(flags, random) + "".join(
        f"[{random.choice([*commands, 'nonsense'])}]\n{_table(flags, random)}" for _ in range(random.randrange(2))
    )
    content = text.encode("utf-8", "surrogatepass")
    file.write_bytes(mutated_text(content, random) if random.random() < 0.2 else content)
    variables = _variables(name, flags, random)
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        commands[name].make_context(name, ["--config", str(file), *REQUIRED[name]], parent=root)
    except (click.ClickException, click.exceptions.Exit) as error:
        if error.exit_code not in (0, UsageError.exit_code):
            raise
        raise UsageError(str(error) or "click") from error
    finally:
        os.environ.clear()
        os.environ.update(before)


def _table(flags: list[str], random: Random) -> str:
    names = random.sample(flags, random.choice([1, 1, 2, 3]))
    return "".join(f"{_key(name, random)} = {_toml(random.choice(WORDS))}\n" for name in names)


def _key(name: str, random: Random) -> str:
    return random.choice([name, name, name, name.replace("-", "_"), json.dumps(name + "\n"), name[:-1] or "x"])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps("none" if value is None else value)


def _variables(command: str, flags: list[str], random: Random) -> dict[str, str]:
    variables = {}
    for _ in range(random.choice([0, 0, 1, 2])):
        flag = random.choice(flags).upper().replace("-", "_")
        text = str(random.choice(WORDS)).replace("\0", "")
        variables[random.choice([f"TNA_ONNX_{flag}", f"TNA_ONNX_{command.upper()}_{flag}", f"TNA_ONNX_{flag}X"])] = text
    return variables
