"""The JSON Schema (2020-12) of what `--json` writes, made of the dataclasses of the results.

Keys and types are the fields of the dataclasses. Descriptions and units stand in the `Attributes:` sections of their
docstrings and nowhere else. Choices are those of the `Literal`s and of `MAPS`. Rule by rule:

1. A field without a line in `Attributes:` is an error, and so is a line without a field.
2. A number has a unit, by one of the words in `_UNITS`, and the unit bounds it.
3. An integer is a count: at least 0, or 1 where its line says "at least 1".
4. Plain dictionaries are described by the dataclass that they come from (`_STAND_INS`).
5. No key is optional but those in `_OPTIONAL`, and none may be added.
6. JSON has no None: descriptions say null.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tna_onnx.data.images.preprocess import ResolvedRecipe
from tna_onnx.fields import settings_of
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.walk.steps import Refusal
from tna_onnx.maps import MAPS
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval
from tna_onnx.pipeline.settings import RECORDED
from tna_onnx.pipeline.settings import Settings as CalibrationSettings
from tna_onnx.results.as_json import SCHEMA
from tna_onnx.results.details import Angles
from tna_onnx.results.gates import Gates
from tna_onnx.results.inspection import Collection, HeadInfo, Inspection, ModelDifference, OutputDifference
from tna_onnx.results.measured import ComparedModel, Evaluation, ModelComparison
from tna_onnx.results.outcomes import Guard, Shift
from tna_onnx.results.report import Comparison, CurvePoint, Report
from tna_onnx.results.study import Studies, Study
from tna_onnx.search.candidates import SearchSettings
from tna_onnx.studies.settings import StudySettings

_KINDS = (
    Report,
    Evaluation,
    Collection,
    Inspection,
    ModelDifference,
    ModelComparison,
    Guard,
    Shift,
    Studies,
    Study,
)

_DESCRIPTION = (
    "What --json writes. Fractions are not per cent; NLL is in nats; angles are in degrees unless a description says "
    "radians. Numbers that are not finite become null."
)

_FORM = (
    "What this document is and the version of its form; the number rises when a key changes its meaning or goes away."
)

_setting_types = get_type_hints(CalibrationSettings)

_Map: Any = Literal[("none", *MAPS)]
_OutputKind = Literal[
    "logits", "probabilities", "log_probabilities", "positive_probability", "positive_logit", "label_probabilities",
    "label_logits",
]  # fmt: skip
_Activation = Literal["none", "softmax", "log_softmax", "sigmoid"]

# What a run says of itself beside its settings: type and description.
_OF_RUN: dict[str, tuple[Any, str]] = {
    "ensemble_size_asked": (
        int | Literal["auto", "inf"],
        "tilted weights averaged, as asked for: a number, at least 1, `auto`, or `inf` for the limit of many.",
    ),
    "device": (str, "device that was asked for."),
    "computed_on": (
        str,
        "what computed the search and the fits of maps, and where: NumPy on the CPU, or torch on a device.",
    ),
    "batch_size": (int, "samples in each run of the network, at least 1."),
    "confidence_level": (float, "level of the intervals, per cent."),
    "gates": (Gates, "limits on the result."),
}


def _settings() -> type:
    """A dataclass with the settings that a report records."""
    stated = settings_of(CalibrationSettings)
    described = {name: (_setting_types[name], stated[name][1].meaning) for name in RECORDED} | _OF_RUN
    fields = [(name, kind, dataclasses.field(default=None)) for name, (kind, _) in described.items()]
    settings = dataclasses.make_dataclass("Settings", fields, bases=(SearchSettings,), frozen=True)
    lines = [f"    {name}: {text}" for name, (_, text) in described.items()]
    settings.__doc__ = "\n".join(["What the run was asked for, and what the search used.", "", "Attributes:", *lines])
    return settings


Settings = _settings()


def _differences() -> type:
    """A dataclass with an interval for each metric; the units are those in which metrics are stored."""
    lines = []
    for metric in METRICS.values():
        stored = "a fraction" if metric.factor == 100 else metric.unit or "no unit"
        lines.append(f"    {metric.name}: of the {metric.label}, {stored}.")
    differences = dataclasses.make_dataclass("Differences", [(name, Interval) for name in METRICS])
    differences.__doc__ = "\n".join(["Paired differences of each metric.", "", "Attributes:", *lines])
    return differences


Differences = _differences()

# A study, and what `guard` says, is a result of its own with a file of its own, and a part of another result too.
_OPTIONAL = ((Report, "details"), *((kind, key) for kind in (Guard, Study) for key in ("schema", "kind")))


@dataclasses.dataclass
class _Nothing:
    """An object without keys."""


_Parameters = dict[str, float | tuple[float, ...]]

_STAND_INS: dict[tuple[type | None, str], Any] = {
    (None, "preprocessing"): ResolvedRecipe | None,
    (None, "output_kind"): _OutputKind,
    (None, "activation"): _Activation,
    (ResolvedRecipe, "dtype"): str,
    (Report, "search"): _setting_types["search"],
    (Report, "map"): _Map,
    (Report, "objective"): _setting_types["objective"],
    (Report, "parameters"): _Parameters,
    (Report, "settings"): Settings,
    (Studies, "settings"): StudySettings,
    (CurvePoint, "parameters"): _Parameters,
    (Angles, "weight"): Literal["original", "tilted", "averaged"],
    (Comparison, "differences"): Differences,
    (ComparedModel, "differences"): Differences | _Nothing,
}
"""(dataclass, field) -> the type of what JSON holds there; None stands for every dataclass."""

_NAMES = {
    Difference: "change",
    HeadInfo: "head",
    OutputDifference: "outputs",
    ResolvedRecipe: "preprocessing",
    Refusal: "refusal",
} | {kind: kind.__name__.lower() for kind in _KINDS}
"""Names of definitions that are not the snake case of the dataclass's."""

_UNITS: dict[str, dict[str, float]] = {
    "nats": {"minimum": 0},  # before fractions: an objective is one or the other
    "fraction": {"minimum": 0, "maximum": 1},
    "per cent": {"minimum": 0, "maximum": 100},
    "percentage points": {"minimum": 0, "maximum": 100},
    "degrees": {"minimum": 0},
    "lengths of": {"minimum": 0},
    "number of rotations": {"minimum": 0},
    "seconds": {"minimum": 0},
    "radians": {},
    "no unit": {},
    "unit of the metric": {},
    "in units of": {},
}
"""Unit, as descriptions name it -> the bounds of a number in it; the first that is found counts."""

# Sums of many rounded shares may end above 1.
_SHARES = {"minimum": 0, "maximum": 1 + 1e-7}

_BOUNDS: dict[tuple[str, str], dict[str, float]] = {
    ("metrics", "brier"): {"minimum": 0, "maximum": 2},
    ("verification", "bound"): {"minimum": 0},  # a sum of roundings, not a probability: it may exceed 1
    ("angles", "predicted"): _SHARES,
    ("angles", "others"): _SHARES,
    ("risk_coverage", "coverage"): _SHARES,
    ("risk_coverage", "risk"): _SHARES,
    ("settings", "confidence_level"): {"minimum": 50, "maximum": 100},
    ("settings", "angle_step"): {"exclusiveMinimum": 0},
}
"""(definition, key) -> bounds of its numbers, where those of its unit do not fit."""


def _attributes(cls: type) -> dict[str, str]:
    """Return the lines of the `Attributes:` section of a dataclass and of those that it extends, by field."""
    lines: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = re.search(r"^Attributes:\n((?:(?: .*)?\n?)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section and dataclasses.is_dataclass(base):
            entries = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section[1], re.MULTILINE)
            lines |= {name: " ".join(text.split()) for name, text in entries}
    fields = {field.name for field in dataclasses.fields(cls)}
    if wrong := fields ^ set(lines):
        raise ValueError(f"{cls.__name__}: `Attributes:` and fields differ in {', '.join(sorted(wrong))}")
    return lines


@cache
def _schema() -> dict[str, Any]:
    definitions = {_name(kind): _definition(kind) for kind in _dataclasses()}
    results = {_NAMES[kind]: _result(kind, definitions.pop(_NAMES[kind])) for kind in _KINDS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tna-onnx:result:{SCHEMA}",
        "title": "Results of tna-onnx",
        "description": _DESCRIPTION,
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in results],
        "$defs": results | dict(sorted(definitions.items())),
    }


def json_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what `--json` writes.

    Args:
        kind: `report`, `evaluation`, ..., as in the `kind` of a result; any of them by default.

    Raises:
        ValueError: no such kind.

    >>> json_schema("evaluation")["$ref"]
    '#/$defs/evaluation'
    """
    schema = dict(_schema())
    kinds = [_NAMES[result] for result in _KINDS]
    if kind is None:
        return schema
    if kind not in kinds:
        raise ValueError(f"there is no result of kind '{kind}'; expected {', '.join(kinds)}")
    del schema["oneOf"]
    return {**schema, "$id": f"urn:tna-onnx:{kind}:{SCHEMA}", "$ref": f"#/$defs/{kind}"}


def _name(cls: type) -> str:
    return _NAMES.get(cls, re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower())


def _fields(cls: type) -> dict[str, Any]:
    """Field -> type of what JSON holds there."""
    hints = get_type_hints(cls)
    fields = {}
    for field in dataclasses.fields(cls):
        # a protobuf, and bytes: never in JSON
        if cls is not Report or field.name not in ("recalibrated", "patch"):
            fallback = _STAND_INS.get((None, field.name), hints[field.name])
            fields[field.name] = _STAND_INS.get((cls, field.name), fallback)
    return fields


def _dataclasses() -> list[type]:
    """Return the kinds of results and all dataclasses that they hold."""
    listed: dict[type, None] = {}
    waiting: list[Any] = list(_KINDS)
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in listed and hint is not _Nothing:
            listed[hint] = None
            waiting += _fields(hint).values()
    return list(listed)


def _definition(cls: type) -> dict[str, Any]:
    lines = _attributes(cls)
    properties = {
        name: _property(f"{_name(cls)}.{name}", hint, _sentence(lines[name])) for name, hint in _fields(cls).items()
    }
    summary = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    return {
        "type": "object",
        "description": _sentence(" ".join(summary.split()).partition("; made by")[0]),
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _result(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    """A definition of a kind of result: `schema` and `kind` before its fields, the verdict behind them."""
    name = _NAMES[kind]
    properties = {
        "schema": {"const": f"tna-onnx/{name}/{SCHEMA}", "description": _FORM},
        "kind": {"const": name, "description": "What the result is."},
        **entry["properties"],
    }
    if verdict := getattr(kind, "verdict", None):
        properties["verdict"] = {"type": "string", "description": inspect.cleandoc(verdict.__doc__)}
    if kind is Report:  # rule 5: without figures there are no details, and they are never null
        properties["details"]["$ref"] = properties["details"].pop("anyOf")[0]["$ref"]
    required = [key for key in properties if (kind, key) not in _OPTIONAL]
    return {**entry, "properties": properties, "required": required}


def _property(place: str, hint: Any, description: str) -> dict[str, Any]:
    """Return the schema of a field; `place` is its definition and key."""
    unit = next((word for word in _UNITS if word in description), None)
    owner, _, key = place.partition(".")
    schema = _typed(hint)
    # what a dictionary holds is described by its keys
    if "additionalProperties" not in schema:
        if "number" in _types(schema) and unit is None:
            raise ValueError(f"{place}: a number without a unit; expected one of {', '.join(_UNITS)}")  # rule 2
        _bound(schema, "integer", {"minimum": 1 if "at least 1" in description else 0})  # rule 3
        _bound(schema, "number", _BOUNDS.get((owner, key), _UNITS.get(unit or "", {})))
    if place == "bins.count":
        schema["minItems"] = 1
    if place.endswith("sha256") and not place.endswith("source_sha256"):  # that one is what a file claims
        schema["pattern"] = "^([0-9a-f]{64})?$"
    return {**schema, "description": description}


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _typed(hint: Any) -> dict[str, Any]:
    if hint in (Any, object):
        return {}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _reference(hint)
    if get_origin(hint) in _BUILDERS:
        return _BUILDERS[get_origin(hint)](get_args(hint))
    return {"type": _SCALARS[hint]}


def _reference(cls: type) -> dict[str, Any]:
    return {"type": "object", "maxProperties": 0} if cls is _Nothing else {"$ref": f"#/$defs/{_name(cls)}"}


def _choice(values: tuple[Any, ...]) -> dict[str, Any]:
    if len(values) == 1:
        return {"const": values[0], "type": _SCALARS[type(values[0])]}
    return {"enum": list(values), "type": _SCALARS[type(values[0])]}


def _union(parts: tuple[Any, ...]) -> dict[str, Any]:
    choices = [_typed(part) for part in parts]
    if len(choices) == 2 and choices[1] == {"type": "null"} and isinstance(choices[0].get("type"), str):
        return {**choices[0], "type": [choices[0]["type"], "null"]}
    return {"anyOf": choices}


def _array(parts: tuple[Any, ...]) -> dict[str, Any]:
    """Return the schema of a tuple: of any length, or of as many items of one type."""
    length = {} if parts[-1] is Ellipsis else {"minItems": len(parts), "maxItems": len(parts)}
    return {"type": "array", "items": _typed(parts[0]), **length}


def _mapping(parts: tuple[Any, ...]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": _typed(parts[1]) or True}


_BUILDERS: dict[Any, Callable[[tuple[Any, ...]], dict[str, Any]]] = {
    Literal: _choice,
    Union: _union,
    types.UnionType: _union,
    tuple: _array,
    dict: _mapping,
    Mapping: _mapping,
}


def _sentence(text: str) -> str:
    """A line as a sentence; in JSON, None is null (rule 6)."""
    text = re.sub(r"\bNone\b", "null", text).rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


def _types(schema: Any) -> set[str]:
    """All JSON types in a schema."""
    if isinstance(schema, list):
        return set().union(*map(_types, schema))
    if not isinstance(schema, dict):
        return set()
    kinds = schema.get("type", [])
    inner = set().union(*(_types(part) for part in schema.values()))
    return inner | set([kinds] if isinstance(kinds, str) else kinds)


def _bound(schema: Any, kind: str, limits: dict[str, float]) -> None:
    """Put bounds beside a type, wherever it stands."""
    if isinstance(schema, list):
        for part in schema:
            _bound(part, kind, limits)
    if isinstance(schema, dict):
        for part in list(schema.values()):
            _bound(part, kind, limits)
        if kind in schema.get("type", []):
            schema.update(limits)
