#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the Python package, by the interpreter that `make python` made, on the sources and the library of this build. Exit code 77,
# with the reason, where they cannot run. Usage: run_python.sh BUILD
set -u
build=$(cd "${1:?usage: run_python.sh BUILD}" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
skip() { echo "Python tests left out: $*"; exit 77; }

python=$build/venv/bin/python
[ -x "$python" ] || skip "no $build/venv (make python)"
"$python" -c 'import pytest, numpy' 2> /dev/null || skip "no pytest or NumPy in $build/venv"
grep -q -e __asan_init -e __tsan_init "$build/libhocket.so" && skip "a sanitized library cannot be loaded by an ordinary interpreter"
"$python" -c 'import torch' 2> /dev/null || echo "no torch in $build/venv: its tests are left out"
export HOCKET_LIBRARY=$build/libhocket.so PYTHONPATH=$source/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
cd "$source" && exec "$python" -m pytest -p no:cacheprovider python/tests
