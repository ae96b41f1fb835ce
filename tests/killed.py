"""Runs that are killed at every call of the system that changes a folder, and what is there afterwards.

    python -m tests.killed model FOLDER        a model with external data replaces an older one
    python -m tests.killed result FOLDER       a result in one file does

Each call (rename, fsync, unlink, ...) and each write of a data file is the last thing that one child process does; a
second one dies just before it. One line of JSON a kill: the call, what the name opens as (`old`, `new` or what is
wrong), and what the folder holds after the next run that is not killed.
"""

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.graph.samples import CASES
from tna_onnx.files import write_file
from tna_onnx.graph import save
from tna_onnx.graph.load import load_model
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.save import pending
from tna_onnx.graph.scores import choose_head

CALLS = ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "chmod")
KILLED = 9
UNRELATED = {
    "new.onnx.data": b"of an older version, or of someone else",
    "new.onnx.0123456789abcdef.data": b"called like ours, but not what the name says",
    "other.onnx": b"not a model",
    ".tna-onnx.tmp": b"not one of ours",
}


def calls_of(run: Callable[[], None], kill_at: int | None, *, after: bool) -> list[str]:
    """Run something, and return the calls that change the folder; die at one of them."""
    seen: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(*args: Any, **options: Any) -> Any:
            seen.append(name)
            last = len(seen) - 1 == kill_at
            if last and not after:
                os._exit(KILLED)
            result = call(*args, **options)
            if last:
                os._exit(KILLED)
            return result

        return wrapper

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))
    save._Output.write = watched("write", save._Output.write)
    run()
    return seen


def in_child(run: Callable[[], None], kill_at: int | None = None, *, after: bool = False) -> list[str]:
    """Do so in a process of its own; returns the calls, or nothing if it was killed."""
    end, start = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        code = 1
        try:
            seen = calls_of(run, kill_at, after=after)
            os.write(start, json.dumps(seen).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(start)
    with os.fdopen(end, "rb") as stream:
        told = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (0 if kill_at is None else KILLED), code
    return json.loads(told) if told else []


def kills(run: Callable[[], None], reset: Callable[[], None]) -> Iterator[str]:
    """Kill a run at each of its calls, before and after it; yields the call."""
    reset()
    names = in_child(run)
    for k, name in enumerate(names):
        for after in (False, True):
            reset()
            in_child(run, k, after=after)
            yield f"{'after' if after else 'before'} {name} {k}"


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a model with external data


def save_scaled(source: Path, factor: float, output: Path) -> None:
    """Write the model with a scaled weight."""
    model = load_model(source)
    head = choose_head(model)
    with pending(model, rewrite(model, head, factor * head.weight, metadata={}).proto, output):
        pass


def weight_in(path: Path) -> np.ndarray:
    """Return the weight as onnx reads it, its data file included."""
    proto = onnx.load(path)
    return next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == "weight")


def model_kills(folder: Path) -> Iterator[dict[str, Any]]:
    source, out = folder / "source", folder / "out"
    source.mkdir()
    model = CASES["external data"]().write(source).path
    old, new = weight_in(model) * 2, weight_in(model) * 3

    def reset() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for name, content in UNRELATED.items():
            (out / name).write_bytes(content)
        save_scaled(model, 2, out / "new.onnx")

    def state() -> str:
        for name, content in UNRELATED.items():
            if (out / name).read_bytes() != content:
                return f"{name} is changed"
        weight = weight_in(out / "new.onnx")
        return next((name for name, w in (("old", old), ("new", new)) if np.array_equal(weight, w)), "neither")

    for call in kills(lambda: save_scaled(model, 3, out / "new.onnx"), reset):
        opens_as = state()
        save_scaled(model, 3, out / "new.onnx")
        yield {"call": call, "opens as": opens_as, "then": state(), "files": listed(out)}


# --- a result in one file


def result_kills(folder: Path) -> Iterator[dict[str, Any]]:
    out = folder / "out"
    contents = {b"old" * 1000: "old", b"new" * 1000: "new"}
    old, new = contents

    def reset() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "report.json").write_bytes(old)

    def state() -> str:
        return contents.get((out / "report.json").read_bytes(), "neither")

    for call in kills(lambda: write_file(out / "report.json", new), reset):
        opens_as = state()
        write_file(out / "report.json", new)
        yield {"call": call, "opens as": opens_as, "then": state(), "files": listed(out)}


if __name__ == "__main__":
    for line in {"model": model_kills, "result": result_kills}[sys.argv[1]](Path(sys.argv[2])):
        sys.stdout.write(f"{json.dumps(line)}\n")
