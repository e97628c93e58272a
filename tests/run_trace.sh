#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Traces of a job of processes: a file a rank, a report, a picture that parses, several jobs told apart; files that are cut or damaged
# are refused with a sentence, never worse. And the table of HOCKET_STATS=1. Usage: run_trace.sh BUILD/bin
set -u
bin=${1:?usage: run_trace.sh BUILD/bin}
hocket=$bin/hocket
data=$(cd "$(dirname "$0")/.." && pwd)/examples/data/digits.csv.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# expect CODE TEXT NAME COMMAND...: exit code, and text (a basic regex) in the output
expect() {
    local code=$1 text=$2 name=$3 got; shift 3
    timeout 60 "$@" > "$work/out" 2>&1 < /dev/null
    got=$?
    [ $got = "$code" ] || fail "$name: exit code $got, not $code: $(tail -n 3 "$work/out")"
    grep -q -- "$text" "$work/out" || fail "$name: no '$text' in: $(head -n 5 "$work/out")"
}

train=("$hocket" run -n 3 --timeout 60 -- "$bin/train_digits" --epochs 1 --data "$data")
expect 0 'accuracy' 'a traced run' env HOCKET_TRACE="$work/t" "${train[@]}"
[ "$(find "$work/t" -name '*-rank[0-2].hktrace' | wc -l)" = 3 ] || fail "not a file a rank: $(ls "$work/t")"
expect 0 'ranks 3, communicators 1, machines 1' 'the report' "$hocket" trace "$work/t" -o "$work/t.json" --link 10gbit
for text in '^all_reduce ' '^last to enter' '^forward and backward ' 'link(%)' '^2 '; do
    grep -q -- "$text" "$work/out" || fail "the report has no '$text'"
done

python3 - "$work/t.json" << 'END' || fail "the picture is not as it should be"
import collections, json, sys
events = json.load(open(sys.argv[1], encoding="utf-8"))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert sorted(names) == [0, 1, 2] and all(names[p].startswith(f"rank {p} (host ") for p in names), names
tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
seqs = collections.defaultdict(set)
for e in events:
    assert e["ph"] in "MXsf", e
    if e["ph"] == "M":
        continue
    assert e["ts"] >= 0 and e.get("dur", 0) >= 0
    track = tracks[e["pid"], e["tid"]]
    if e["cat"] == "operation":
        assert track == "operations" and e["args"]["status"] == "HK_OK" and e["args"]["ranks"] == 3
        seqs[e["pid"]].add(e["args"]["seq"])
    elif e["cat"] == "span":
        assert track.endswith(": spans") and e["name"] == "forward and backward"
    elif e["cat"] in ("call", "issue", "wait"):
        assert track.endswith(": calls and waits")
assert seqs[0] == seqs[1] == seqs[2] == set(range(1, len(seqs[0]) + 1)) and len(seqs[0]) > 20
arrows = collections.Counter(e["ph"] for e in events if e["ph"] in "sf")
assert arrows["s"] == arrows["f"] > 0
assert {e["cat"] for e in events if e["ph"] == "X"} >= {"operation", "span", "call", "wait"}
END

# ---- Two runs in one folder are two jobs; communicators of one job are one
expect 0 '' 'a second run' env HOCKET_TRACE="$work/t" "$hocket" run -n 2 -- "$bin/all_reduce"
expect 2 'files of 2 jobs' 'two jobs' "$hocket" trace "$work/t"
expect 0 'ranks [23], communicators 1' 'one of them' "$hocket" trace "$work/t" --job 1
expect 2 'there is no job 3: it has 2' 'a third' "$hocket" trace "$work/t" --job 3
expect 0 '' 'pipeline' env HOCKET_TRACE="$work/p" "$hocket" run -n 4 -- "$bin/pipeline"
expect 0 'ranks 4, communicators [2-9]' 'several communicators' "$hocket" trace "$work/p" -o "$work/p.json"
python3 -c "import json; json.load(open('$work/p.json'))" || fail "the picture of several communicators does not parse"

# ---- A slow link is transfer, not somebody's lateness: 256 KiB over 25 MB/s take 10 ms and more
expect 0 '' 'a slow link' env HOCKET_TRACE="$work/s" "$hocket" run -n 2 --transport tcp --pace 200mbit -- "$hocket" perf all_reduce -b 256K -e 256K
expect 0 '^all_reduce ' 'its report' "$hocket" trace "$work/s"
awk '$1 == "all_reduce" && NF >= 10 { found = $8 > 8000 && $6 < $8 / 2 } END { exit !found }' "$work/out" || fail "a slow link: $(grep '^all_reduce' "$work/out")"

# ---- Operations under way together that their caller only waits for: nothing is hidden, however long each took
expect 0 '' 'nothing but communication' env HOCKET_TRACE="$work/c" "$hocket" run -n 2 -- "$bin/ladder" --rung comm --bucket 65536 --steps 5
expect 0 '^all_reduce ' 'its report' "$hocket" trace "$work/c"
awk '$1 ~ /^[01]$/ && $2 ~ /\./ { sum += $6 } END { exit !(sum / 2 < 50) }' "$work/out" || fail "hidden by nothing: $(sed -n 3,6p "$work/out")"

# ---- Ranks that were killed leave what they had written
expect 124 '' 'a run that is ended' env HOCKET_TRACE="$work/k" "$hocket" run -n 2 --timeout 1500ms -- "$hocket" perf all_reduce -b 256M -e 1G
expect 2 'its end is missing after [0-9]* events' 'its file' "$hocket" trace "$work/k"
expect 0 'have no end' 'what there is of it' "$hocket" trace "$work/k" --partial

# ---- Cut and damaged files
mkdir "$work/d"
one=$(find "$work/t" -name '*-rank2.hktrace')
size=$(stat -c %s "$one")
damage() { # damage NAME TEXT: what is in $work/d/x.hktrace is refused, and taken or refused, but read, with --partial
    expect 2 "x.hktrace: .*$2" "$1" "$hocket" trace "$work/d"
    timeout 60 "$hocket" trace "$work/d" --partial -o "$work/d.json" > "$work/out" 2>&1
    case $? in
        0) python3 -c "import json; json.load(open('$work/d.json'))" || fail "$1: the picture does not parse" ;;
        2) ;;
        *) fail "$1, --partial: $(tail -n 3 "$work/out")" ;;
    esac
}
for at in 0 7 100 127 128 129 224 $((size - 97)) $((size - 96)) $((size - 1)); do
    head -c "$at" "$one" > "$work/d/x.hktrace"
    damage "cut at $at" '\(no trace of hocket\|cut off\|end is missing\)'
done
for at in 0 8 16 50 52 60 126 128 130 160 200 219 $((size - 96)) $((size - 50)) $((size - 1)); do
    cp "$one" "$work/d/x.hktrace"
    printf '\377' | dd of="$work/d/x.hktrace" bs=1 seek="$at" conv=notrunc 2> /dev/null
    cmp -s "$one" "$work/d/x.hktrace" || damage "byte $at is 255" '\(no trace\|damaged\|another version\)'
done
cat "$one" "$one" > "$work/d/x.hktrace"
damage 'twice' 'is an end where none can be'
cp "$one" "$work/d/y.hktrace" && cp "$one" "$work/d/x.hktrace"
expect 2 'another file is of the same rank' 'the same file twice' "$hocket" trace "$work/d"

# ---- The table
expect 0 '^hocket stats: rank 1 (host .*, pid [0-9]*) of 3' 'HOCKET_STATS=1' env HOCKET_STATS=1 "${train[@]}"
grep -q '^  all_reduce  *[1-9]' "$work/out" && grep -q '^  shm: sent [1-9]' "$work/out" || fail "the table: $(grep -A4 '^hocket stats' "$work/out" | head -n 5)"
[ "$(grep -c '^hocket stats: rank' "$work/out")" = 3 ] || fail "not a table a rank"
expect 0 '  lo (all of the machine): sent [1-9]' 'interfaces' env HOCKET_STATS=1 HOCKET_TRANSPORT=tcp "$hocket" run -n 2 -- "$bin/all_reduce"
expect 0 '^rank 0' 'HOCKET_STATS=0' env HOCKET_STATS=0 "$hocket" run -n 1 -- "$bin/all_reduce"
grep -q 'hocket stats' "$work/out" && fail "a table that nobody wanted"

[ $failures = 0 ] && echo "run_trace: as it should be"
exit $((failures > 0))
