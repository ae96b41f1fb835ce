#!/usr/bin/env bash
# Everything that is written for CUDA, on a machine that has it: installs into a virtual environment of its own, and runs gpu.py.
#
#   benchmarks/gpu.sh OUTPUT.json           # with a package index
#   benchmarks/gpu.sh OUTPUT.json WHEELS    # without network
#
# WHEELS is a folder that was filled where there is a network (Linux on x86-64, Python 3.12), from the root of the repository:
#   pip wheel --no-deps --wheel-dir WHEELS .
#   pip download --dest WHEELS --only-binary :all: --requirement benchmarks/gpu-lock.txt
set -euo pipefail
output=$(realpath "$1")
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
if [ $# -lt 2 ]; then
  "$venv/bin/pip" install --quiet --constraint benchmarks/gpu-lock.txt '.[gpu]'
else
  # a wheel that is built already: nothing that builds one is in the folder
  wheels=$(realpath "$2")
  "$venv/bin/pip" install --quiet --no-index --find-links "$wheels" --constraint benchmarks/gpu-lock.txt 'tna-onnx[gpu]'
fi
cd benchmarks
"$venv/bin/python" gpu.py --output "$output"
