#!/usr/bin/env bash
# Everything that needs a GPU and no training: the gpu tests, then each kernel's benchmark, then whole steps.
#   benchmarks/gpu.sh [FOLDER]    results are appended to FOLDER/*.csv (default: benchmarks/results)
# A part that fails does not stop the next one; the exit status is the number of parts that failed.
cd "$(dirname "$0")/.." || exit 1
out=${1:-benchmarks/results}
mkdir -p "$out"
export PYTHONPATH=src:tests/train PYTHONUNBUFFERED=1
failed=0
part() {
  echo "== $* ($(date +%T))"
  timeout "$@" || { failed=$((failed + 1)); echo "== failed: $*"; }
}
part 420 python3 -m pytest -q --maxfail 20 -m "gpu and not slow" -p no:cacheprovider tests/model tests/decode tests/train
part 120 python3 benchmarks/edge_kernels.py --csv "$out/kernels.csv"
part 60 python3 benchmarks/neighborhood_attention.py --sweep --csv "$out/kernels.csv"
part 60 python3 benchmarks/replay.py --csv "$out/kernels.csv"
part 120 python3 benchmarks/nar4tsp_layer.py --csv "$out/kernels.csv"
part 240 python3 benchmarks/training.py --profile --seconds 3 --csv "$out/training.csv"
part 120 python3 benchmarks/training.py --profile --seconds 3 --csv "$out/training.csv" --set policy.encoder=nar4tsp \
  --case "n=50 batch=512 M=48" --case "n=50 batch=64 M=3"
part 180 python3 benchmarks/training.py --seconds 3 --csv "$out/training.csv" --set fused=false \
  --case "n=50 batch=512 M=48" --case "n=50 batch=64 M=3"
exit $failed
