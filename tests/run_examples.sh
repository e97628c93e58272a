#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every example, with several numbers of ranks, over shared memory, TCP and both. Each checks itself: exit code 0 and one line a rank
# or a job. Usage: run_examples.sh BUILD/bin
set -u
bin=${1:?usage: run_examples.sh BUILD/bin}
hocket=$bin/hocket
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
runs=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# holds TEXT NAME COMMAND...: exit code 0 and TEXT (a basic regex) in what it says
holds() {
    local text=$1 name=$2 code; shift 2
    timeout 40 "$@" > "$work/out" 2>&1 < /dev/null
    code=$?
    runs=$((runs + 1))
    [ $code = 0 ] || { fail "$name: exit code $code: $(tail -n 3 "$work/out")"; return; }
    grep -q -- "$text" "$work/out" || fail "$name: no '$text' in: $(head -n 3 "$work/out")"
}

# example NAME TEXT RANKS...: over shared memory, TCP and both (two ranks a pretended host)
example() {
    local name=$1 text=$2 n; shift 2
    for n; do
        holds "$text" "$name, $n ranks, shm" "$hocket" run -n "$n" --timeout 30 --transport shm -- "$bin/$name"
        holds "$text" "$name, $n ranks, tcp" "$hocket" run -n "$n" --timeout 30 --transport tcp -- "$bin/$name"
        [ "$n" -gt 2 ] && holds "$text" "$name, $n ranks, mixed" "$hocket" run -n "$n" --timeout 30 --hosts-of 2 -- "$bin/$name"
    done
}

example all_reduce ', 0 wrong$' 1 2 3 4 8
example tensor_parallel 'whole layer: 0, gradients: 0$' 1 2 3 4 8
example sharded_optimizer ' 0 of 10007 parameters differ' 1 2 3 4 8
example solver_cg 'steps (1[0-9]* on one rank), residuals within' 1 2 3 4 8
example pipeline 'bubble (S-1)/(M+S-1) = 11.1 %' 2 4 6 8

# Training: gradients in buckets while backward runs, and in micro-batches, give the losses of the blocking way to 1e-5.
training() {
    local name=$1 n=$2; shift 2
    holds 'held-out accuracy' "train_digits $*, $n ranks" "$hocket" run -n "$n" --timeout 30 --hosts-of 2 -- "$bin/train_digits" --epochs 4 \
        --data "$source/examples/data/digits.csv.gz" --losses "$work/$name" "$@"
}
for n in 1 2 3 4; do
    training blocking $n
    training overlap $n --overlap
    training both $n --overlap --accumulate 4
    training accumulate $n --accumulate 4
    for mode in overlap both accumulate; do
        paste "$work/blocking" "$work/$mode" | awk '{ d = $1 - $2; if (NF != 2 || d > 1e-5 || d < -1e-5) bad = 1 } END { exit bad || NR != 4 }' \
            || fail "train_digits, $n ranks: losses of $mode differ: $(paste "$work/blocking" "$work/$mode")"
    done
done

# What a wrong number of ranks gives.
timeout 40 "$hocket" run -n 3 --timeout 30 -- "$bin/pipeline" > "$work/out" 2>&1 < /dev/null
[ $? = 2 ] && grep -q 'needs an even number of ranks' "$work/out" || fail "pipeline on 3 ranks: $(head -n 3 "$work/out")"

# With MPI, where there is one. The shared library of a sanitized build cannot be linked so simply: left out.
library=$(ls "$bin"/../libhocket.so 2> /dev/null)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi=0
for flavour in .openmpi .mpich ''; do
    cc=mpicc$flavour run=mpirun$flavour
    [ -z "$flavour" ] && [ $mpi -gt 0 ] && continue # the plain names are one of the two above
    command -v "$cc" "$run" > /dev/null || continue
    { [ -n "$library" ] && ! grep -q -e __asan_init -e __tsan_init "$library"; } || continue
    mpi=$((mpi + 1))
    "$cc" -O2 -I"$source/include" "$source/examples/mpi_bootstrap.c" -L"$bin/.." -Wl,-rpath,"$(cd "$bin/.." && pwd)" -lhocket \
        -o "$work/mpi_bootstrap" > "$work/out" 2>&1 || { fail "$cc mpi_bootstrap.c: $(head -n 5 "$work/out")"; continue; }
    share=
    "$run" --version 2> /dev/null | grep -q 'Open MPI\|OpenRTE' && share=--oversubscribe
    for n in 1 2 4; do
        # shellcheck disable=SC2086
        holds ' 0 of [0-9]* sums differ' "mpi_bootstrap, $run, $n ranks" "$run" $share -n $n "$work/mpi_bootstrap"
    done
done
[ $mpi -gt 0 ] || echo "mpi_bootstrap: left out (no mpicc and mpirun, or a sanitized build)"

[ $failures = 0 ] && echo "$runs runs of examples, all right" || echo "$failures of $runs failed"
exit $((failures > 0))
