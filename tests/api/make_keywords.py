"""Writes `tna_onnx/api/keywords.py`: the types of keywords, of the fields of the settings.

Type checkers and editors read types from files only, so these are written by `python -m tests.api.make_keywords` after
a field was added; a test says where that was forgotten.
"""

import ast
import builtins
import inspect
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

from tna_onnx.data.data_settings import DataFields, EngineFields, FeatureFields
from tna_onnx.fields import settings_of
from tna_onnx.graph.options import ModelOptions
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.pipeline.settings import FIT_SETTINGS, Settings
from tna_onnx.results.gates import Gates
from tna_onnx.shifting.shift_settings import ShiftSettings

FILE = Path(__file__).parents[2] / "tna_onnx" / "api" / "keywords.py"

LIMITS = ("max_ece", "max_nll", "min_accuracy")

# Name of the type -> the settings, what it is, and which of them; all, if that is not said.
KINDS: dict[str, tuple[type, str, tuple[str, ...]]] = {
    "DataWords": (DataFields, "Settings of `Data`.", ()),
    "EngineWords": (EngineFields, "Settings of `EngineFields`.", ()),
    "SampleWords": (FeatureFields, "Which samples `features` takes.", ("max_samples", "stratify")),
    "FitWords": (Settings, "Settings of `Settings` that scores alone need.", FIT_SETTINGS),
    "ModelWords": (ModelOptions, "Settings of `ModelOptions`.", ()),
    "SettingsWords": (Settings, "Settings of `Settings`.", ()),
    "LimitWords": (Gates, "Limits of `Gates`.", LIMITS),
    "ChangeWords": (
        Gates,
        "Gates on a change.",
        ("max_recall_drop", "min_balanced_accuracy", "min_recall", "require_improvement", "fail_if_worse"),
    ),
    "DecisionWords": (
        GuardSettings,
        "Settings of `GuardSettings` that `Settings` has not.",
        tuple(name for name in settings_of(GuardSettings) if name not in settings_of(Settings)),
    ),
    "ShiftSettingsWords": (ShiftSettings, "Settings of `ShiftSettings`.", ()),
}

# Wider than in the field, which holds what was made of it.
WIDER = {"add": "Sequence[str]", "only": "Sequence[str]"}


def written() -> str:
    """Return the file."""
    imports: dict[str, set[str]] = defaultdict(set, {"typing": {"TypedDict"}})
    classes = []
    for name, (cls, meaning, names) in KINDS.items():
        types = {field.name: str(field.type) for field in fields(cls)}
        lines = [f"    {key}: {WIDER.get(key, types[key])}" for key in names or settings_of(cls)]
        origins = origins_of(cls) | {"Sequence": "collections.abc"}
        for word in {word for line in lines for word in names_in(line.partition(":")[2])}:
            imports[origins[word]].add(word)
        classes.append("\n".join([f"class {name}(TypedDict, total=False):", f'    """{meaning}"""', "", *lines]))
    head = [f"from {module} import {', '.join(sorted(words))}" for module, words in sorted(imports.items())]
    text = '"""Types of keywords. Written by `python -m tests.api.make_keywords`, of the fields of the settings."""\n\n'
    text += "from __future__ import annotations\n\n" + "\n".join(head) + "\n\n\n"
    return text + "\n\n\n".join(classes) + "\n"


def names_in(annotation: str) -> set[str]:
    """Return the names of an annotation that are no builtins."""
    words = {node.id for node in ast.walk(ast.parse(annotation.strip())) if isinstance(node, ast.Name)}
    return {word for word in words if not hasattr(builtins, word)}


def origins_of(cls: type[Any]) -> dict[str, str]:
    """Return the modules that the names of a module come from."""
    module = sys.modules[cls.__module__]
    origins = dict.fromkeys(vars(module), module.__name__)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            origins |= {alias.asname or alias.name: node.module for alias in node.names}
    return origins


def formatted(text: str) -> str:
    """Return a text as the formatter leaves it."""
    import subprocess

    tool = [sys.executable, "-m", "ruff"]
    for words in (["check", "--select", "I,RUF022", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [*tool, *words, "--stdin-filename", str(FILE), "-"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    FILE.write_text(formatted(written()), encoding="utf-8")
