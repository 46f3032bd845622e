#!/usr/bin/env bash
# Everything that needs a GPU and no training: tests, each kernel's benchmark, whole steps.
#   benchmarks/gpu.sh [FOLDER [PART...]]
# PART is tests (recorded in tests/gpu_run.json), training-tests (those of training alone), kernels, steps, merge or search (default:
# all but training-tests); results are appended to FOLDER/*.csv (default: benchmarks/results/gpu). What fails does not stop the rest,
# what takes too long gets a Ctrl-C; the exit status is the number of commands that failed.
cd "$(dirname "$0")/.." || exit 1
out=${1:-benchmarks/results/gpu}
shift
mkdir -p "$out"
export PYTHONPATH=src PYTHONUNBUFFERED=1
failed=0
run() {
  echo "== $* ($(date +%T))"
  timeout -s INT -k 30 "$@" || { failed=$((failed + 1)); echo "== failed: $*"; }
}
# Compiling takes most of the tests' time, and cores: run them side by side where pytest can.
many=$(python3 -c "import xdist" 2>/dev/null && echo "-n 8")
# One line a test as it ends: what ran before a time limit is not lost.
gpu_tests() {
  run "$1" python3 -m pytest -v -o addopts= $many --maxfail 20 -m "gpu and not slow" -p no:cacheprovider "${@:2}"
}
step() { run "$1" python3 benchmarks/gpu/training.py --seconds 3 --csv "$out/training.csv" "${@:2}"; }
large="n=50 batch=512 M=48" small="n=50 batch=64 M=3"
for part in ${*:-tests kernels steps merge search}; do
  case $part in
    tests) gpu_tests 840 --record-gpu-run tests/decode tests/evaluate tests/kernels tests/research tests/solver tests/train ;;
    training-tests) gpu_tests 420 tests/train ;;
    kernels)
      run 60 python3 benchmarks/gpu/cuda_kernels.py --csv "$out/kernels.csv"
      run 60 python3 benchmarks/gpu/cuda_kernels.py --csv "$out/kernels.csv" --batch 64
      run 60 python3 benchmarks/gpu/cuda_kernels.py --csv "$out/kernels.csv" --mma
      run 60 python3 benchmarks/gpu/replay.py --csv "$out/kernels.csv"
      ;;
    steps)
      step 180 --profile
      step 120 --profile --mma --case "$large" --case "$small"
      step 120 --profile --set policy.encoder=nar4tsp --case "$large" --case "$small"
      step 180 --set fused=false --case "$large" --case "$small"
      ;;
    merge) run 120 python3 benchmarks/gpu/merge_gpu.py --csv "$(realpath "$out")/merge_gpu.csv" ;;
    search) run 1800 python3 benchmarks/gpu/gpu_search.py --csv "$(realpath "$out")/gpu_search.csv" ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
done
exit $failed
