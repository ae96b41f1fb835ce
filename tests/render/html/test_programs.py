"""The programs of the section "use it": JavaScript with ONNX Runtime for Node.js; C++ compiled and run.

The headers of ONNX Runtime's C++ interface are in no wheel. Without them the C++ program is compiled against a stand-in
with the same signatures, whose session gives known scores; where the compiler finds the real ones, against those.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.conftest import Small
from tests.runtimes.tools import node_modules
from tests.support import outputs_of
from tna_onnx.render.html.programs import use
from tna_onnx.results.report import Report

COMPILER = shutil.which("g++") or shutil.which("clang++")
KINDS = ["logits", "log_probabilities", "positive_probability", "positive_logit"]

STAND_IN = r"""
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#define ORT_TSTR(text) text
enum OrtAllocatorType { OrtArenaAllocator };
enum OrtMemType { OrtMemTypeDefault };
enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11 };
namespace Ort {
static const float scores[] = {SCORES};
struct Env {};
struct SessionOptions {};
struct RunOptions { explicit RunOptions(std::nullptr_t) {} };
struct MemoryInfo { static MemoryInfo CreateCpu(OrtAllocatorType, OrtMemType) { return {}; } };
struct TensorTypeAndShapeInfo {
  ONNXTensorElementDataType GetElementType() const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  size_t GetElementCount() const { return sizeof(scores) / sizeof(scores[0]); }
};
struct Value {
  Value(const Value&) = delete;
  Value(Value&&) = default;
  template <typename T>
  static Value CreateTensor(const MemoryInfo&, T* data, size_t count, const int64_t* shape, size_t axes) {
    size_t product = 1;
    for (size_t k = 0; k < axes; ++k) product *= shape[k];
    for (size_t k = 0; k < count; ++k) if (data[k] != T()) throw 1;
    if (product != count) throw 2;
    return Value();
  }
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const { return {}; }
  template <typename T> const T* GetTensorData() const { return scores; }
  Value() = default;
};
struct Session {
  Session(Env&, const char*, const SessionOptions&) {}
  std::vector<Value> Run(const RunOptions&, const char* const*, const Value*, size_t, const char* const*, size_t) {
    std::vector<Value> outputs;
    outputs.emplace_back();
    return outputs;
  }
};
}  // namespace Ort
"""


@pytest.fixture(scope="module")
def report(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Report:
    output = tmp_path_factory.mktemp("report") / "o.onnx"
    return tna_onnx.calibrate(
        small.model, small.calib, eval=small.test, output=output, details=True, search="none", map="ts", device="cpu"
    )


def program(report: Report, language: str, kind: str) -> str:
    details = report.details
    assert details is not None
    shown = use(report, replace(details, made=replace(details.made, output_kind=kind)))
    assert shown is not None
    [text] = [each.text for each in shown.programs if each.language == language]
    return text


def scores_of(report: Report) -> NDArray[np.float64]:
    """Return what the file computes of zeros, which is what the programs put in."""
    zeros = outputs_of(report.output, np.zeros((1, 8), np.float32))["logits"]
    return np.asarray(zeros, np.float64).ravel()


def expected(scores: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    if kind == "logits":
        return np.exp(scores) / np.exp(scores).sum()
    if kind == "log_probabilities":
        return np.exp(scores)
    if kind == "positive_logit":
        return 1 / (1 + np.exp(-scores))
    return scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.skipif(not (node_modules() / "onnxruntime-node").exists(), reason="ONNX Runtime for Node.js is missing")
def test_the_program_in_javascript_runs(report: Report, tmp_path: Path, kind: str) -> None:
    # the file says that either package will do; modules are looked up beside the program
    text = program(report, "JavaScript", kind).replace("onnxruntime-web", "onnxruntime-node", 1)
    text = text.replace("console.log(probabilities)", "console.log(probabilities.join(' '))")
    (tmp_path / "use.mjs").write_text(text, "utf-8")
    (tmp_path / "node_modules").symlink_to(node_modules())
    shutil.copy(report.output or "", tmp_path)
    done = subprocess.run(["node", "use.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), float), expected(scores_of(report), kind), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_program_in_cpp_computes_probabilities(report: Report, tmp_path: Path, kind: str) -> None:
    scores = scores_of(report)
    listed = ", ".join(f"{np.float32(score):.9g}f" if "." in f"{score:.9g}" else f"{score}.0f" for score in scores)
    (tmp_path / "onnxruntime_cxx_api.h").write_text(STAND_IN.replace("SCORES", listed), "utf-8")
    (tmp_path / "use.cpp").write_text(program(report, "C++", kind), "utf-8")
    words = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", ".", "use.cpp", "-o", "use"]
    subprocess.run([str(word) for word in words], cwd=tmp_path, check=True)
    done = subprocess.run(["./use"], cwd=tmp_path, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(np.array(done.stdout.split(), float), expected(scores, kind), rtol=1e-5)


def found_headers() -> bool:
    """Tell whether the compiler finds ONNX Runtime's own headers, on CPATH for example."""
    if COMPILER is None:
        return False
    words = [COMPILER, "-x", "c++", "-E", "-"]
    done = subprocess.run(words, input="#include <onnxruntime_cxx_api.h>", capture_output=True, text=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not found_headers(), reason="no headers of ONNX Runtime")
def test_the_program_in_cpp_runs_with_onnx_runtime(report: Report, tmp_path: Path) -> None:
    (tmp_path / "use.cpp").write_text(program(report, "C++", "logits"), "utf-8")
    shutil.copy(report.output or "", tmp_path)
    words = [str(COMPILER), "-std=c++17", "use.cpp", "-o", "use", "-lonnxruntime"]
    subprocess.run(words, cwd=tmp_path, check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": os.environ.get("LIBRARY_PATH", "")}
    done = subprocess.run(["./use"], cwd=tmp_path, capture_output=True, text=True, check=True, env=env)
    found = np.array(done.stdout.split(), float)
    np.testing.assert_allclose(found, expected(scores_of(report), "logits"), rtol=1e-4)
