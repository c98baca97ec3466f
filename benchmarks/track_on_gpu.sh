#!/usr/bin/env bash
# Track on a machine with a GPU that has torch, triton, numpy, pyyaml and nothing of the extras: the arms of
# benchmarks/track_arms.py in at most ten minutes. Wheels of pydantic lie in .whl where the machine lacks them.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/track}
mkdir -p "$OUT"
if ! python3 -c "import pydantic" 2>/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/track-site .whl/*.whl
  export PYTHONPATH=/tmp/track-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False
timeout 590 python3 benchmarks/track_arms.py --out "$OUT/track_arms.json" "$@" 2>&1 | tee "$OUT/track_arms.log"
