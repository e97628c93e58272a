#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every command of docs/tour.md: each block marked "sh" must succeed in all its lines, each marked "sh fails" must not. Other blocks are
# output and not run. Usage: run_tour.sh BUILD/bin [DOCUMENT]
set -u
bin=$(cd "${1:?usage: run_tour.sh BUILD/bin [DOCUMENT]}" && pwd)
document=${2:-$(cd "$(dirname "$0")/.." && pwd)/docs/tour.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$bin:$PATH
failures=0
blocks=0

# One file a block, named by its line and kind: 00042.runs, 00077.fails
awk -v dir="$work" '
    /^```sh( fails)?$/ { file = sprintf("%s/%05d.%s", dir, NR, / fails$/ ? "fails" : "runs"); next }
    /^```/ { file = ""; next }
    file { print > file }' "$document"

for block in "$work"/*.runs "$work"/*.fails; do
    [ -e "$block" ] || continue
    blocks=$((blocks + 1))
    line=$((10#$(basename "${block%.*}")))
    (cd "$work" && exec timeout 100 bash -e "$block") > "$work/out" 2>&1 < /dev/null
    code=$?
    case $block in
        *.runs) [ $code = 0 ] ;;
        *) [ $code = 3 ] || [ $code = 137 ] ;; # for the reason told: a communicator that failed, a rank that was killed
    esac && continue
    failures=$((failures + 1))
    echo "FAIL: line $line, exit code $code: $(head -n 2 "$block")"
    tail -n 5 "$work/out"
done

[ $blocks -gt 0 ] || { echo "FAIL: no commands in $document"; exit 1; }
[ $failures = 0 ] && echo "$blocks blocks of $(basename "$document"), all as told" || echo "$failures of $blocks blocks failed"
exit $((failures > 0))
