#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket run and hocket perf as a shell sees them: exit codes, signals, limits, text, leftovers. Usage: run_test.sh BUILD/bin
set -u
bin=${1:?usage: run_test.sh BUILD/bin}
hocket=$bin/hocket
work=$(mktemp -d)
mark=run-test-$$
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# until SECONDS COMMAND...: polls until the command succeeds
until_true() {
    local deadline=$(($(date +%s%N) / 1000000 + $1 * 1000)); shift
    until "$@"; do
        [ $(($(date +%s%N) / 1000000)) -lt $deadline ] || return 1
        read -rt 0.02 <> <(:) || true
    done
}

# Processes started by expect and start (the mark is in their environment only) that are still there.
marked() { grep -l "HOCKET_RUN_TEST_RANK=$mark" /proc/[0-9]*/environ 2> /dev/null | tr -dc '0-9\n'; }
nothing_left() { [ -z "$(marked)" ]; }
lines_are() { [ "$(wc -l < "$1" 2> /dev/null || echo 0)" -ge "$2" ]; }

# expect CODE TEXT NAME COMMAND...: exit code, and text (a basic regex) in the output
expect() {
    local code=$1 text=$2 name=$3 got; shift 3
    HOCKET_RUN_TEST_RANK=$mark timeout 60 "$@" > "$work/out" 2>&1 < /dev/null
    got=$?
    [ $got = "$code" ] || fail "$name: exit code $got, not $code: $(tail -n 3 "$work/out")"
    [ -z "$text" ] || grep -q -- "$text" "$work/out" || fail "$name: no '$text' in: $(head -n 5 "$work/out")"
    until_true 5 nothing_left || fail "$name: left behind: $(marked)"
}

# start NAME ARGS...: hocket run in the background with ranks that tell in $work/NAME that they are up; sets launcher
start() {
    local name=$1; shift
    : > "$work/$name"
    HOCKET_RUN_TEST_RANK=$mark "$hocket" run "$@" > "$work/out" 2>&1 < /dev/null &
    launcher=$!
}

# ended NAME CODE: the launcher ends with that code, and nothing is left
ended() {
    local got
    wait $launcher 2> /dev/null
    got=$?
    [ $got = "$2" ] || fail "$1: exit code $got, not $2: $(tail -n 3 "$work/out")"
    until_true 6 nothing_left || fail "$1: left behind: $(marked)"
}

# ---- Exit codes
expect 0 '' 'all ranks well' "$hocket" run -n 3 -- true
expect 3 'rank 1 (pid [0-9]*) exited with code 3' 'one rank exits 3' \
    "$hocket" run -n 3 -- sh -c '[ "$HOCKET_RANK" = 1 ] && exit 3; exec sleep 100'
expect 137 'rank 1 (pid [0-9]*) killed by signal 9 (out of memory?)' 'one rank is killed' \
    "$hocket" run -n 3 -- sh -c '[ "$HOCKET_RANK" = 1 ] && kill -9 $$; exec sleep 100'
expect 134 'killed by signal 6' 'one rank aborts' "$hocket" run -n 2 -- sh -c '[ "$RANK" = 1 ] && kill -ABRT $$; exec sleep 100'
expect 3 'exited with code 3' 'stopped ranks end too' \
    "$hocket" run -n 2 -- sh -c '[ "$HOCKET_RANK" = 1 ] && kill -STOP $$; exit 3'
expect 3 'did not end within 5 s: killed' 'deaf ranks are killed' \
    "$hocket" run -n 2 -- sh -c 'if [ $HOCKET_RANK = 0 ]; then while [ ! -e "$0" ]; do sleep 0.02; done; exit 3; fi
        trap "" TERM; echo > "$0"; while :; do sleep 100; done' "$work/deaf"
expect 124 'time limit of 0.3 s passed' 'time limit' "$hocket" run -n 2 --timeout 300ms -- sleep 100
expect 127 "cannot run 'no-such-program-here'" 'no such program' "$hocket" run -n 2 -- no-such-program-here
expect 126 "cannot run '/etc/passwd'" 'not executable' "$hocket" run -n 2 -- /etc/passwd

# ---- Environment and output
expect 0 '^2 3 2 3 fake-0.1$' 'environment' \
    "$hocket" run -n 3 --hosts-of 2 -- sh -c 'echo $HOCKET_RANK $HOCKET_RANKS $RANK $WORLD_SIZE $HOCKET_HOST_KEY'
expect 0 '^\[1\] hello$' 'prefix' "$hocket" run -n 2 --prefix -- sh -c 'printf hel; echo lo'
expect 0 '^5 6 10.0.0.9 29500 -$' 'second node' "$hocket" run -n 3 --nodes 2 --node 1 --master 10.0.0.9:29500 -- \
    sh -c 'echo $HOCKET_RANK $HOCKET_RANKS $HOCKET_ADDR $HOCKET_PORT ${HOCKET_JOB--}'
expect 0 '^10.0.0.9 29501$' 'second node, for others' "$hocket" run -n 3 --nodes 2 --node 1 --master 10.0.0.9:29500 -- \
    sh -c 'echo $MASTER_ADDR $MASTER_PORT'
expect 0 '^127.0.0.1 [1-9][0-9]*$' 'a meeting place for others' "$hocket" run -n 2 -- sh -c 'echo $MASTER_ADDR $MASTER_PORT'
expect 0 '^line$' 'standard input' sh -c "echo line | '$hocket' run -n 2 -- cat"

# ---- Signals: each rank has a child; all must end
ranks='sleep 100 & echo up >> "$0"; wait'
for sig in INT:130 TERM:143; do
    start $sig -n 3 -- sh -c "$ranks" "$work/$sig"
    until_true 10 lines_are "$work/$sig" 3 || fail "$sig: ranks did not start"
    kill -${sig%:*} $launcher
    ended $sig ${sig#*:}
done

start twice -n 2 -- sh -c 'trap "" TERM; echo up >> "$0"; while :; do sleep 100; done' "$work/twice"
until_true 10 lines_are "$work/twice" 2 || fail 'twice: ranks did not start'
begun=$SECONDS
kill -TERM $launcher
until_true 5 grep -q 'ending the ranks' "$work/out" || fail 'twice: the first signal is not told'
kill -TERM $launcher
ended twice 143
[ $((SECONDS - begun)) -lt 5 ] || fail 'twice: the second signal did not kill at once'

start gone -n 3 -- sh -c "$ranks" "$work/gone"
until_true 10 lines_are "$work/gone" 3 || fail 'gone: ranks did not start'
kill -KILL $launcher
ended gone 137

start quit -n 2 -- sh -c 'echo up >> "$0"; while [ -e "$0" ]; do sleep 0.05; done' "$work/quit"
until_true 10 lines_are "$work/quit" 2 || fail 'quit: ranks did not start'
kill -QUIT $launcher
until_true 5 grep -q 'laggard first' "$work/out" || fail 'quit: no table'
rm "$work/quit"
ended quit 0

# ---- Wrong command lines: code 2, what is wrong, where to look
expect 2 "no command 'prf'; did you mean 'hocket perf'" 'unknown command' "$hocket" prf
expect 2 "hocket run --help" 'run: unknown option' "$hocket" run -n 2 --tiemout 3 -- true
expect 2 'Give -n' 'run: no -n' "$hocket" run -- true
expect 2 'no program to run' 'run: no program' "$hocket" run -n 2
expect 2 'number from 1' 'run: negative' "$hocket" run -n -2 -- true
expect 2 'needs --node and --master' 'run: no master' "$hocket" run -n 2 --nodes 2 -- true
expect 2 '--node 2 is not below --nodes 2' 'run: node too high' \
    "$hocket" run -n 2 --nodes 2 --node 2 --master h:1 -- true
expect 2 'it is one of auto, shm, tcp' 'run: transport' "$hocket" run -n 2 --transport ib -- true
expect 2 'it is one of all_reduce' 'perf: operation' "$hocket" perf allreduce -n 2
expect 2 'it is one of binary_tree' 'perf: algorithm' "$hocket" perf all_reduce -n 2 --algo rng
expect 2 'a size such as' 'perf: size' "$hocket" perf all_reduce -n 2 -b 8X
expect 2 'no job to join' 'perf: no job' "$hocket" perf all_reduce
expect 2 'is for integer types' 'perf: band of floats' "$hocket" perf all_reduce -n 2 --redop band
expect 2 'it is one of machine' 'info: part' "$hocket" info nonsense
expect 0 'How do I start a job' 'commands by question' "$hocket"
for c in run perf info; do expect 0 'Example' "$c --help" "$hocket" $c --help; done

# ---- perf
expect 0 'Out of bounds values : 0 OK' 'perf, own ranks' "$hocket" perf all_reduce -n 2 -b 8 -e 64K -f 16 --json "$work/perf.json"
grep -q '"op": "all_reduce", "ranks": 2' "$work/perf.json" || fail "perf: JSON: $(head -c 300 "$work/perf.json")"
if command -v python3 > /dev/null; then python3 -m json.tool "$work/perf.json" > /dev/null || fail 'perf: the JSON is not valid'; fi
expect 0 '0 OK' 'perf in a job' "$hocket" run -n 3 -- "$hocket" perf all_gather -b 1 -e 4K
expect 0 '0 OK' 'perf send_recv' "$hocket" perf send_recv -n 3 --matrix -b 8 -e 8
expect 0 'create_env' 'perf init' "$hocket" perf init -n 2
expect 2 'cannot write' 'perf: JSON file' "$hocket" perf barrier -n 2 --json /no/such/folder/x

rm -rf "$work"
[ $failures = 0 ] && echo "hocket run and perf: all well"
exit $((failures > 0))
