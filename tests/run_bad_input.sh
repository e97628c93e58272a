#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad input, each case a golden in tests/bad_input/: command, exit code, text (hosts, pids, ports and times masked). BLESS=1 rewrites.
# usage: run_bad_input.sh BUILD/bin
set -u
export LC_ALL=C
bin=$(cd "${1:?usage: run_bad_input.sh BUILD/bin}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)/bad_input
work=$(mktemp -d)
trap 'rm -rf "$work"; [ -z "${holder:-}" ] || kill "$holder" 2> /dev/null' EXIT
export PATH=$bin:$PATH
unset HOCKET_RANK HOCKET_RANKS HOCKET_JOB RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
failures=0
cases=0

mask() {
    sed -E -e "s#$work#WORK#g; s#$bin/##g; s/$(hostname):[0-9]+:[0-9]+/HOST:PID:TID/g; s/host $(hostname)/host HOST/g" \
        -e 's/pid [0-9]+/pid PID/g; s/job-(bad-)?[0-9a-f]+/job-JOB/g; s/port [0-9]{4,5}/port PORT/g; s/[0-9]+\.[0-9] s\b/TIME s/g' \
        -e 's/^( +[0-9]+) +[0-9]+ /\1 PID /; s/(one of|algorithms?:?) [a-z0-9_]+(, [a-z0-9_]+)+/\1 NAMES/' -e 's/of [0-9]+ MiB/of N MiB/; s/\(has: [^)]*\)/(has: ADDRESSES)/' | sort -u
}

check() { # check NAME COMMAND: runs it in a shell
    local name=$1
    cases=$((cases + 1))
    (cd "$work" && timeout 20 bash -c "$2") > "$work/out" 2>&1 < /dev/null
    local code=$?
    { echo "\$ $2" | sed -E "s/bad-[0-9]+/JOB/; s/MASTER_PORT=${port:-none}/MASTER_PORT=PORT/"; echo "exit code $code"; mask < "$work/out"; } > "$work/got"
    if [ -n "${BLESS:-}" ]; then cp "$work/got" "$here/$name.txt"; return; fi
    cmp -s "$work/got" "$here/$name.txt" && return
    echo "FAIL: $name"
    diff "$here/$name.txt" "$work/got"
    failures=$((failures + 1))
}

check no_command "hocket frobnicate"
check run_nothing "hocket run -n 2"
check run_count "hocket run -n 0 -- true"
check run_no_program "hocket run -n 1 -- ./nosuch"
check run_option "hocket run --colour -- true"
check run_pace "hocket run -n 1 --pace fast -- true"
check run_timeout "hocket run -n 1 --timeout 1 -- sleep 30"
check perf_op "hocket perf all_reduc -n 2"
check perf_size "hocket perf all_reduce -n 2 -b 12Q"
check perf_algo "hocket perf all_reduce -n 2 -b 8 -e 8 --algo nosuch"
check perf_dtype "hocket perf all_reduce -n 2 --dtype f99"
check plan_op "hocket plan sum ring --ranks 4"
check plan_algo "hocket plan all_reduce nosuch --ranks 4"
check plan_ranks "hocket plan all_reduce ring --ranks 0"
check few_descriptors "for r in 0 1 2 3 4 5 6 7 8 9; do (export HOCKET_RANK=\$r HOCKET_RANKS=10 HOCKET_ADDR=127.0.0.1 HOCKET_PORT=29835; [ \$r != 0 ] || ulimit -n 12; all_reduce) & done 2>&1 | grep -o 'rank 0, where.*' | sort -u"
check trace_nothing "hocket trace"
check trace_no_folder "hocket trace nosuch"
check trace_empty "mkdir none; hocket trace none"
check trace_foreign "mkdir foreign; echo hello > foreign/x.hktrace; hocket trace foreign"
check bad_trace "HOCKET_TRACE=/dev/null hocket run -n 1 -- all_reduce"
check bad_stats "HOCKET_STATS=yes hocket run -n 1 -- all_reduce"
check info_topic "hocket info weather"
check no_rank "all_reduce"
check half_rank "HOCKET_RANK=1 HOCKET_RANKS=1 all_reduce"
check bad_rank "RANK=x WORLD_SIZE=2 all_reduce"
check no_place "RANK=0 WORLD_SIZE=2 all_reduce"
check bad_port "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=notaport all_reduce"
check bad_host "RANK=0 WORLD_SIZE=2 MASTER_ADDR=no.such.host.invalid MASTER_PORT=4000 all_reduce"
check foreign_address "RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=4000 all_reduce"
check bad_timeout "HOCKET_TIMEOUT=abc hocket run -n 1 -- all_reduce"
check bad_transport "HOCKET_TRANSPORT=x hocket run -n 1 -- all_reduce"
check bad_algorithm "HOCKET_ALGO=nosuch hocket run -n 1 -- all_reduce"
check bad_isa "HOCKET_ISA=abacus hocket run -n 1 -- all_reduce"
check bad_slots "HOCKET_SLOTS=1 hocket run -n 1 -- all_reduce"
check missing_rank "HOCKET_JOB=bad-$$ HOCKET_RANK=0 HOCKET_RANKS=3 HOCKET_INIT_TIMEOUT=300ms all_reduce"
check no_data "train_digits --data WORK/nosuch.gz"
check calls "bad_calls"

mkfifo "$work/ready"
python3 -c "import socket,time; s=socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)" > "$work/ready" &
holder=$!
read -r port < "$work/ready"
check busy_port "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port all_reduce"

[ $failures = 0 ] && echo "$cases cases of bad input, all as told" || echo "$failures of $cases cases differ"
exit $((failures > 0))
