#!/usr/bin/env bash
# Everything that is written for CUDA, on a machine that has it: installs into a virtual environment of its own, and runs gpu.py.
#
#   benchmarks/gpu.sh OUTPUT.json           # with a package index
#   benchmarks/gpu.sh OUTPUT.json WHEELS    # without network: WHEELS is a folder that `pip download '.[gpu]'` filled
set -euo pipefail
output=$(realpath "$1")
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
offline=()
[ $# -lt 2 ] || offline=(--no-index --find-links "$(realpath "$2")")
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet "${offline[@]}" '.[gpu]'
cd benchmarks
"$venv/bin/python" gpu.py --output "$output"
