#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A single flipped bit in one message must make perf, the demo and the conformance suite fail: checks that can fail.
# usage: fault_test.sh BUILD
set -u
faulty=$1/faulty
demo=$(dirname "$0")/../scripts/demo
bad=0
must() { # must fail|pass NAME COMMAND...
    local want=$1 name=$2 got=pass
    shift 2
    "$@" > "$faulty/log" 2>&1 || got=fail
    echo "$name: $got"
    [ $got = "$want" ] || { cat "$faulty/log"; bad=1; }
}
perf=("$faulty/bin/hocket" perf all_reduce -n 2 -b 64 -e 4K -f 4)
must pass "perf without a fault" "${perf[@]}"
export HOCKET_FAULT=flip:rank=1,op=3,byte=17
must fail "perf" "${perf[@]}"
must fail "conformance" "$faulty/bin/conformance_test"
export HOCKET_FAULT=flip:rank=1,op=3,byte=2
must fail "demo" "$demo" "$faulty"
exit $bad
