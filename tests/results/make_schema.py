"""Writes `tna_onnx/results/schema.json` from the dataclasses of the results: `python -m tests.results.make_schema`.

Keys and types are the fields of the dataclasses. Descriptions and units stand in the `Attributes:` sections of their
docstrings and nowhere else. Choices are those of the `Literal`s and of `MAPS`. pydantic makes the JSON types; only
development needs it, so this lives beside the test that compares (`test_make_schema.py`) and is not shipped.

What this adds, rule by rule:

1. A field without a line in `Attributes:` is an error, and so is a line without a field.
2. A number has a unit, by one of the words in `UNITS`, and the unit bounds it.
3. An integer is a count: at least 0, or 1 where its line says "at least 1".
4. Plain dictionaries are described by the dataclass that they come from (`STAND_INS`).
5. No key is optional but those in `_OPTIONAL`, and none may be added.
6. JSON has no None: descriptions say null.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import operator
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic.json_schema import models_json_schema

import tna_onnx
from tna_onnx.api.arguments import CalibrateWords
from tna_onnx.data.images.preprocess import ResolvedRecipe
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.walk.steps import Refusal
from tna_onnx.maps import MAPS
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval
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

FILE = Path(tna_onnx.__file__).parent / "results/schema.json"

KINDS = (
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
"""Whatever `--json` writes."""

DESCRIPTION = (
    "What --json writes. Fractions are not per cent; NLL is in nats; angles are in degrees unless a description says "
    "radians. Numbers that are not finite become null."
)

HEAD = {
    "schema": "What this document is and the version of its form; the number rises when a key changes its meaning or "
    "goes away.",
    "kind": "What the result is.",
}
"""Keys that `to_json` writes before the fields."""

# What the command line and the API take.
_asked = get_type_hints(CalibrateWords) | get_type_hints(tna_onnx.calibrate)

_WORDS = ("method", "search", "map", "predictions", "ets_loss", "map_objective", "quantized_head")

_Map = Literal[("none", *MAPS)]
_OutputKind = Literal[
    "logits", "probabilities", "log_probabilities", "positive_probability", "positive_logit", "label_probabilities",
    "label_logits",
]  # fmt: skip
_Activation = Literal["none", "softmax", "log_softmax", "sigmoid"]


@dataclasses.dataclass(frozen=True)
class Settings(SearchSettings):
    """What the run was asked for, and what the search used.

    Attributes:
        max_accuracy_drop: accuracy that a candidate may lose on the calibration data, percentage points.
        method: what `search` and `map` are where they say `auto`.
        search: search that was asked for.
        map: map that was asked for.
        predictions: whether `auto` may take what changes predictions.
        keep_decision: whether a file that may change predictions gives those of the input as an output, too.
        fold: whether linear maps may go into weight and bias.
        ets_loss: what the weights of ETS minimise.
        map_objective: what the temperature of `ts` minimises; `auto` is the objective.
        quantized_head: what becomes of a weight that is stored quantised.
        trust_labels: whether labels were taken as right although they look wrong or miss classes.
        ensemble_size_asked: tilted weights averaged, as asked for: a number, at least 1, `auto`, or `inf` for the limit
            of many.
        device: device that was asked for.
        computed_on: what computed the search and the fits of maps, and where: NumPy on the CPU, or torch on a device.
        batch_size: samples in each run of the network, at least 1.
        confidence_level: level of the intervals, per cent.
        gates: limits on the result.
    """

    max_accuracy_drop: float = 0.3
    method: str = "auto"
    search: str = "auto"
    map: str = "auto"
    predictions: str = "auto"
    keep_decision: bool = False
    fold: bool = True
    ets_loss: str = "auto"
    map_objective: str = "auto"
    quantized_head: str = "requantize"
    trust_labels: bool = False
    ensemble_size_asked: int | Literal["auto", "inf"] = "auto"
    device: str = "auto"
    computed_on: str = ""
    batch_size: int = 64
    confidence_level: float = 95.0
    gates: Gates = dataclasses.field(default_factory=Gates)


def _differences() -> type:
    """A dataclass with an interval for each metric; the units are those in which metrics are stored."""
    lines = []
    for metric in METRICS.values():
        stored = "a fraction" if metric.factor == 100 else metric.unit or "no unit"
        lines.append(f"    {metric.name}: of the {metric.label}, {stored}.")
    made = dataclasses.make_dataclass("Differences", [(name, Interval) for name in METRICS])
    made.__doc__ = "\n".join(["Paired differences of each metric.", "", "Attributes:", *lines])
    return made


Differences = _differences()

# A study, and what `guard` says, is a result of its own with a file of its own, and a part of another result too.
_OPTIONAL = ((Report, "details"), *((kind, key) for kind in (Guard, Study) for key in ("schema", "kind")))

_Empty = pydantic.create_model("_Empty", __config__=pydantic.ConfigDict(extra="forbid"))
_Parameters = dict[str, float | tuple[float, ...]]

STAND_INS: dict[tuple[type | None, str], Any] = {
    (None, "preprocessing"): ResolvedRecipe | None,
    (None, "output_kind"): _OutputKind,
    (None, "activation"): _Activation,
    (ResolvedRecipe, "dtype"): str,
    (Report, "search"): _asked["search"],
    (Report, "map"): _Map,
    (Report, "objective"): _asked["objective"],
    (Report, "parameters"): _Parameters,
    (Report, "settings"): Settings,
    (Studies, "settings"): StudySettings,
    **{(Settings, name): _asked[name] for name in _WORDS},
    (CurvePoint, "parameters"): _Parameters,
    (Angles, "weight"): Literal["original", "tilted", "averaged"],
    (Comparison, "differences"): Differences,
    (ComparedModel, "differences"): Differences | _Empty,
}
"""(dataclass, field) -> the type of what JSON holds there; None stands for every dataclass."""

NAMES = {
    Difference: "change",
    HeadInfo: "head",
    OutputDifference: "outputs",
    ResolvedRecipe: "preprocessing",
    Refusal: "refusal",
} | {kind: kind.__name__.lower() for kind in KINDS}
"""Names of definitions that are not the snake case of the dataclass's."""

UNITS: dict[str, dict[str, float]] = {
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

BOUNDS: dict[tuple[str, str], dict[str, float]] = {
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


def attributes(cls: type) -> dict[str, str]:
    """Return the lines of the `Attributes:` section of a dataclass and of those that it extends, by field.

    Raises:
        ValueError: a field without a line, or a line without a field (rule 1).
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = re.search(r"^Attributes:\n((?:(?: .*)?\n?)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section and dataclasses.is_dataclass(base):
            entries = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section[1], re.MULTILINE)
            found |= {name: " ".join(text.split()) for name, text in entries}
    fields = {field.name for field in dataclasses.fields(cls)}
    if wrong := fields ^ set(found):
        raise ValueError(f"{cls.__name__}: `Attributes:` and fields differ in {', '.join(sorted(wrong))}")
    return found


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of all results."""
    _, generated = models_json_schema([(_model(kind), "serialization") for kind in KINDS])
    definitions = {name: _definition(name, entry) for name, entry in generated["$defs"].items() if name != "_Empty"}
    for kind in KINDS:
        name = NAMES[kind]
        definitions[name] = _result(kind, definitions[name])
    ordered = {NAMES[kind]: definitions.pop(NAMES[kind]) for kind in KINDS} | dict(sorted(definitions.items()))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tna-onnx:result:{SCHEMA}",
        "title": "Results of tna-onnx",
        "description": DESCRIPTION,
        "oneOf": [{"$ref": f"#/$defs/{NAMES[kind]}"} for kind in KINDS],
        "$defs": ordered,
    }


def text_of(schema: dict[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# From dataclasses to pydantic's models


@functools.cache
def _model(cls: type) -> type[pydantic.BaseModel]:
    """The pydantic model of a dataclass: the same fields, with their lines as descriptions."""
    lines, hints = attributes(cls), get_type_hints(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if cls is Report and field.name in ("recalibrated", "patch"):  # a protobuf, and bytes: never in JSON
            continue
        hint = STAND_INS.get((cls, field.name), STAND_INS.get((None, field.name), hints[field.name]))
        fields[field.name] = (_modelled(hint), pydantic.Field(description=_sentence(lines[field.name])))
    summary = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    return pydantic.create_model(
        NAMES.get(cls, re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()),
        __config__=pydantic.ConfigDict(extra="forbid", protected_namespaces=()),
        __doc__=_sentence(" ".join(summary.split()).partition("; made by")[0]),
        **fields,
    )


def _modelled(hint: Any) -> Any:
    """A type with every dataclass in it replaced by its model."""
    if dataclasses.is_dataclass(hint):
        return _model(hint)
    origin = get_origin(hint)
    if origin is None or origin is Literal:
        return hint
    parts = [_modelled(part) for part in get_args(hint)]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, parts)
    return origin[tuple(parts)]


def _sentence(text: str) -> str:
    """A line as a sentence; in JSON, None is null (rule 6)."""
    text = re.sub(r"\bNone\b", "null", text).rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


# From pydantic's schema to ours


def _definition(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _property(name, key, value) for key, value in entry["properties"].items()}
    return {
        "type": "object",
        "description": entry["description"],
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _result(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    """A definition of a kind of result: `schema` and `kind` before its fields, the verdict behind them."""
    name = NAMES[kind]
    properties = {
        "schema": {"const": f"tna-onnx/{name}/{SCHEMA}", "description": HEAD["schema"]},
        "kind": {"const": name, "description": HEAD["kind"]},
        **entry["properties"],
    }
    if verdict := getattr(kind, "verdict", None):
        properties["verdict"] = {"type": "string", "description": inspect.cleandoc(verdict.__doc__)}
    if kind is Report:  # rule 5: without figures there are no details, and they are never null
        properties["details"]["$ref"] = properties["details"].pop("anyOf")[0]["$ref"]
    required = [key for key in properties if (kind, key) not in _OPTIONAL]
    return {**entry, "properties": properties, "required": required}


def _property(owner: str, key: str, value: dict[str, Any]) -> dict[str, Any]:
    description = value["description"]
    unit = next((word for word in UNITS if word in description), None)
    schema = _tidy({name: part for name, part in value.items() if name != "description"})
    kinds = _types(schema)
    if "number" in kinds and "additionalProperties" not in schema and unit is None:
        raise ValueError(f"{owner}.{key}: a number without a unit; expected one of {', '.join(UNITS)}")  # rule 2
    if "additionalProperties" not in schema:
        least = 1 if "at least 1" in description else 0
        _bound(schema, "integer", {"minimum": least})  # rule 3
        _bound(schema, "number", BOUNDS.get((owner, key), UNITS.get(unit or "", {})))
    if (owner, key) == ("bins", "count"):
        schema["minItems"] = 1
    if key.endswith("sha256") and key != "source_sha256":  # that one is what a file claims
        schema["pattern"] = "^([0-9a-f]{64})?$"
    return {**schema, "description": description}


def _tidy(schema: Any) -> Any:
    """pydantic's schema without titles, and in fewer words."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("$ref") == "#/$defs/_Empty":
        return {"type": "object", "maxProperties": 0}
    schema = {name: _tidy(part) for name, part in schema.items() if name not in ("title", "default")}
    if "prefixItems" in schema:  # all of one type
        schema["items"] = schema.pop("prefixItems")[0]
    choices = schema.get("anyOf", [])
    if len(choices) == 2 and choices[1] == {"type": "null"} and isinstance(choices[0].get("type"), str):
        del schema["anyOf"]
        schema = {**choices[0], "type": [choices[0]["type"], "null"], **schema}
    return schema


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


if __name__ == "__main__":
    FILE.write_text(text_of(make_schema()), encoding="utf-8")
