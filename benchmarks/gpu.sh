#!/usr/bin/env bash
# Everything that is written for CUDA, on a machine that has it but no network: gpu.py with the Python there (3.12), its
# torch and what else it has. Only what it lacks is carried, from the root of the repository:
#
#   benchmarks/gpu.sh fetch WHEELS                  # where there is a network, with any Python from 3.11 on
#   benchmarks/gpu.sh run WHEELS OUTPUT.json ...    # there; more words are options of gpu.py
#
# WHEELS then holds array-api-compat, for the checks that need torch alone, and onnxruntime-gpu in parts of 60 MB. The
# parts may arrive one after the other: as long as one is missing, the checks with torch alone are run.
set -euo pipefail
onnxruntime=onnxruntime-gpu==1.31.1
command=$1
mkdir -p "$2"
wheels=$(realpath "$2")
cd "$(dirname "$0")/.."

if [ "$command" = fetch ]; then
  platforms=()
  for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${tag}_x86_64"); done
  python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" --dest "$wheels" array-api-compat==1.16.0 "$onnxruntime"
  cd "$wheels"
  sha256sum onnxruntime_gpu-*.whl > onnxruntime-gpu.sha256
  split --bytes=60MB --numeric-suffixes onnxruntime_gpu-*.whl onnxruntime-gpu.part-
  rm onnxruntime_gpu-*.whl
  ls -l
  exit
fi

output=$(realpath "$3")
shift 3
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
install() { python3 -m pip install --quiet --no-index --no-deps --target "$site/$1" "$2"; }
install torch "$wheels"/array_api_compat-*.whl
export PYTHONPATH=$site/torch:$PWD
python3 benchmarks/gpu.py --output "$output" --part torch "$@"

read -r digest wheel < "$wheels/onnxruntime-gpu.sha256"
cat "$wheels"/onnxruntime-gpu.part-* > "$site/$wheel"
if ! (cd "$site" && sha256sum --quiet --check <<< "$digest  $wheel"); then
  echo "onnxruntime-gpu: a part is missing or damaged; only the checks with torch alone were run"
  exit 1
fi
install onnxruntime "$site/$wheel"
# before the CPU build that is there; CUDA and cuDNN are those of torch
export PYTHONPATH=$site/onnxruntime:$PYTHONPATH
LD_LIBRARY_PATH=$(python3 -c 'import sys, pathlib; print(":".join(str(p) for s in sys.path for p in pathlib.Path(s).glob("nvidia/*/lib")))')
export LD_LIBRARY_PATH
python3 -c 'import onnxruntime; print(onnxruntime.__file__, onnxruntime.__version__, onnxruntime.get_available_providers())'
python3 benchmarks/gpu.py --output "$output" --part onnxruntime "$@"
