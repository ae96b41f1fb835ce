"""Programs that run the written file, in Python, C++ and JavaScript, with its own names, shapes and types.

Each fills the inputs with zeros of the right form, runs one sample and ends with probabilities. Names of a model may
hold anything: they are written as string literals, with every special character escaped.
"""

import json
import math
from pathlib import PurePath
from types import SimpleNamespace

from tna_onnx.results.details import Details, Made, Port
from tna_onnx.results.report import Report

# Lengths of open axes: of a usual image, and of a short list.
_IMAGE_SIDE = 224
_OTHER_LENGTH = 8
_IMAGE_AXES = 4

# NumPy's name of a type -> that of C++, of a tensor in JavaScript, and of its array there.
_TYPES = {
    "float32": ("float", "float32", "Float32Array"),
    "float64": ("double", "float64", "Float64Array"),
    "int64": ("int64_t", "int64", "BigInt64Array"),
    "int32": ("int32_t", "int32", "Int32Array"),
    "uint8": ("uint8_t", "uint8", "Uint8Array"),
    "int8": ("int8_t", "int8", "Int8Array"),
    "bool": ("bool", "bool", "Uint8Array"),
}


def use(report: Report, details: Details) -> SimpleNamespace | None:
    """Return the values of the section; None if no file was written."""
    if not report.output:
        return None
    origin = details.made
    file = PurePath(report.output).name
    programs = [SimpleNamespace(language="Python", text=_python(origin, file))]
    left_out = ""
    if origin.mapped or origin.several or any(port.dtype not in _TYPES for port in origin.inputs):
        left_out = "There is no short program in C++ and JavaScript for inputs or outputs of this kind."
    else:
        programs += [
            SimpleNamespace(language="C++", text=_cpp(origin, file)),
            SimpleNamespace(language="JavaScript", text=_javascript(origin, file)),
        ]
    return SimpleNamespace(file=file, programs=tuple(programs), left_out=left_out)


def _lengths(port: Port) -> list[int]:
    """Choose a length for each axis: one sample, and something likely where any will do."""
    default = _IMAGE_SIDE if len(port.shape) == _IMAGE_AXES else _OTHER_LENGTH
    return [length or (1 if axis == 0 else default) for axis, length in enumerate(port.shape)]


def _python(origin: Made, file: str) -> str:
    feeds = "\n".join(f"    {_quoted(port.name)}: {_zeros(port)}," for port in origin.inputs)
    end = _PYTHON_ENDS["mapped" if origin.mapped else origin.output_kind]
    return f"""import numpy as np
import onnxruntime as ort

session = ort.InferenceSession({_quoted(file)}, providers=["CPUExecutionProvider"])
inputs = {{  # put your samples here, prepared as for the original model
{feeds}
}}
(scores,) = session.run([{_quoted(origin.output)}], inputs)
{end.replace("AXIS", "-1" if origin.several == "last" else "1")}
print(probabilities)
"""


def _zeros(port: Port) -> str:
    shape = ", ".join(map(str, _lengths(port)))
    shape = f"({shape},)" if len(port.shape) == 1 else f"({shape})"
    if port.dtype in ("object", "str"):
        return f'np.full({shape}, "", object)'
    return f"np.zeros({shape}, np.{'bool_' if port.dtype == 'bool' else port.dtype})"


_PYTHON_ENDS = {
    "logits": """scores = np.exp(scores - scores.max(axis=AXIS, keepdims=True))
probabilities = scores / scores.sum(axis=AXIS, keepdims=True)""",
    "log_probabilities": "probabilities = np.exp(scores)",
    "probabilities": "probabilities = scores",
    "positive_probability": "probabilities = scores  # of the second class",
    "positive_logit": "probabilities = 1 / (1 + np.exp(-scores))  # of the second class",
    "label_probabilities": "probabilities = scores  # of each label",
    "label_logits": "probabilities = 1 / (1 + np.exp(-scores))  # of each label",
    "mapped": "probabilities = scores  # a dictionary from class to probability for each sample",
}


def _cpp(origin: Made, file: str) -> str:
    tensors = "\n".join(_cpp_tensor(k, port) for k, port in enumerate(origin.inputs))
    names = ", ".join(_quoted(port.name) for port in origin.inputs)
    return f"""#include <onnxruntime_cxx_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

int main() {{
  Ort::Env env;
  Ort::Session session(env, ORT_TSTR({_quoted(file)}), Ort::SessionOptions{{}});
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<Ort::Value> inputs;  // put your samples here, prepared as for the original model
{tensors}
  const char* names[] = {{{names}}};
  const char* wanted[] = {{{_quoted(origin.output)}}};
  auto outputs = session.Run(Ort::RunOptions{{nullptr}}, names, inputs.data(), inputs.size(), wanted, 1);
  auto info = outputs[0].GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return 1;  // else GetTensorData of that type
  const float* scores = outputs[0].GetTensorData<float>();
  size_t count = info.GetElementCount();
  std::vector<double> p(scores, scores + count);
{_CPP_ENDS[origin.output_kind]}
  for (double value : p) std::printf("%g\\n", value);
}}
"""


def _cpp_tensor(k: int, port: Port) -> str:
    kind = _TYPES[port.dtype][0]
    lengths = _lengths(port)
    size = math.prod(lengths)
    shape = ", ".join(map(str, lengths))
    # no std::vector: that of bool has no array inside
    return f"""  int64_t shape{k}[] = {{{shape}}};
  std::unique_ptr<{kind}[]> data{k}(new {kind}[{size}]());
  inputs.push_back(Ort::Value::CreateTensor<{kind}>(memory, data{k}.get(), {size}, shape{k}, {len(lengths)}));"""


_CPP_ENDS = {
    "logits": """  double largest = p[0], sum = 0;
  for (double value : p) largest = std::fmax(largest, value);
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;""",
    "log_probabilities": "  for (double& value : p) value = std::exp(value);",
    "probabilities": "  // probabilities of the classes",
    "positive_probability": "  // the probability of the second class",
    "positive_logit": "  for (double& value : p) value = 1 / (1 + std::exp(-value));  // of the second class",
    "label_probabilities": "  // the probability of each label",
    "label_logits": "  for (double& value : p) value = 1 / (1 + std::exp(-value));  // of each label",
}


def _javascript(origin: Made, file: str) -> str:
    feeds = "\n".join(f"  {_quoted(port.name)}: {_js_tensor(port)}," for port in origin.inputs)
    return f"""import * as ort from "onnxruntime-web"; // or "onnxruntime-node"

const session = await ort.InferenceSession.create({_quoted(file)});
const inputs = {{ // put your samples here, prepared as for the original model
{feeds}
}};
const scores = Array.from((await session.run(inputs))[{_quoted(origin.output)}].data);
{_JS_ENDS[origin.output_kind]}
console.log(probabilities);
"""


def _js_tensor(port: Port) -> str:
    _, kind, array = _TYPES[port.dtype]
    lengths = _lengths(port)
    return f'new ort.Tensor("{kind}", new {array}({math.prod(lengths)}), {json.dumps(lengths)})'


_JS_ENDS = {
    "logits": """const largest = Math.max(...scores);
const powers = scores.map((score) => Math.exp(score - largest));
const sum = powers.reduce((a, b) => a + b);
const probabilities = powers.map((power) => power / sum);""",
    "log_probabilities": "const probabilities = scores.map(Math.exp);",
    "probabilities": "const probabilities = scores;",
    "positive_probability": "const probabilities = scores; // of the second class",
    "positive_logit": "const probabilities = scores.map((score) => 1 / (1 + Math.exp(-score))); // of the second class",
    "label_probabilities": "const probabilities = scores; // of each label",
    "label_logits": "const probabilities = scores.map((score) => 1 / (1 + Math.exp(-score))); // of each label",
}


def _quoted(text: str) -> str:
    """Write a string literal that all three languages read alike."""
    return json.dumps(text)
