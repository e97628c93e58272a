#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a prefix of its own, without root, moves it, and builds outside programs against it: C by pkg-config, C++17 by
# find_package, shared and static. Looks at what the shared library exports. Usage: run_consumers.sh BUILD
set -u
build=${1:?usage: run_consumers.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
quietly() { "$@" > "$work/log" 2>&1 || { fail "$*: $(tail -n 12 "$work/log")"; return 1; }; }

quietly cmake --install "$build" --prefix "$work/first" || exit 1
mv "$work/first" "$work/moved prefix" # found relative to itself, blanks included
prefix="$work/moved prefix"
for f in include/hocket/hocket.h include/hocket/train.h bin/hocket; do [ -e "$prefix/$f" ] || fail "not installed: $f"; done
library=$(find "$prefix" -name libhocket.so)
[ -n "$library" ] && [ -n "$(find "$prefix" -name libhocket.a)" ] || { fail "no libraries in $(find "$prefix" -type f)"; exit 1; }

# Exports and name.
others=$(nm -D --defined-only "$library" | awk '$2 != "A" && $3 !~ /^hk_/ { print $3 }')
[ -z "$others" ] || fail "exported, but not hk_*: $(echo $others | head -c 300)"
[ "$(nm -D --defined-only "$library" | grep -c ' T hk_')" -ge 50 ] || fail "fewer than 50 exported hk_* functions"
objdump -p "$library" | grep -q 'SONAME *libhocket\.so\.[0-9]' || fail "no SONAME"

# Headers that stand alone, in C11 and C++17, warnings being errors.
for lang in c:c11 c++:c++17; do
    for header in hocket train; do
        echo "#include <hocket/$header.h>" > "$work/alone.h"
        quietly cc -x "${lang%%:*}" -std="${lang##*:}" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$prefix/include" "$work/alone.h"
    done
done

# runs PROGRAM TEXT: two ranks, with the installed command
runs() {
    timeout 60 "$prefix/bin/hocket" run -n 2 --timeout 30 -- "$1" > "$work/out" 2>&1 || { fail "$1: exit code $?: $(cat "$work/out")"; return; }
    grep -q "$2" "$work/out" || fail "$1: no '$2' in: $(cat "$work/out")"
}

# C, by pkg-config. A flag with a blank in it comes back escaped, hence eval.
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name hocket.pc)")
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(dirname "$library")
if command -v pkg-config > /dev/null; then
    version=$(pkg-config --modversion hocket) || fail "pkg-config does not know hocket"
    [ "$version" = "$("$prefix/bin/hocket" info | awk '/^hocket/ { print $2 }')" ] || fail "hocket.pc says $version"
    eval "quietly cc -std=c11 -Wall -Wextra -Wpedantic -Werror \"\$here/consumers/consumer.c\" -o \"\$work/consumer\" $(pkg-config --cflags --libs hocket)" \
        && runs "$work/consumer" 'C consumer: rank 0 of 2, right'
else
    echo "pkg-config is missing: the C consumer is left out"
fi

# C++17, by find_package; the shared one finds its library by the run path that CMake writes.
unset LD_LIBRARY_PATH
quietly cmake -S "$here/consumers/cxx" -B "$work/cxx" -DCMAKE_PREFIX_PATH="$prefix" && quietly cmake --build "$work/cxx" && {
    runs "$work/cxx/consumer_hocket" 'C++ consumer: rank 0, right'
    runs "$work/cxx/consumer_static" 'C++ consumer: rank 0, right'
}

[ $failures = 0 ] && echo "installed, moved, used from C and C++: all right" || echo "$failures failed"
exit $((failures > 0))
