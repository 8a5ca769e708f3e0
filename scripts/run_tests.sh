#!/usr/bin/env bash
# The project's tests: sets up .venv where it is missing or unfinished, then the fast tests, then the slow ones.
#   bash scripts/run_tests.sh [fast|wide|slow|all] [pytest arguments]     (default: all)
# fast: no Ray, no vLLM; two minutes on two cores. wide: every config, method, tag and fault in turn, some minutes.
# slow: end to end; Linux only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=all
case "${1:-}" in
    fast | wide | slow | all) what=$1 && shift ;;
    -h | --help) sed -n '2,5s/^# //p' "$0" && exit 0 ;;
esac

if [ "$(cat .venv/.ragen-setup 2>/dev/null)" = incomplete ] || [ ! -x .venv/bin/python ]; then
    bash scripts/setup_ragen.sh
fi

# half of the fast tests' time is imports: a process per core, each with whole files
run() { .venv/bin/python -m pytest "$@"; }
case "$what" in
    fast | all) run -m "not slow and not wide" -n auto --dist loadfile "$@" ;;&
    wide | all) run -m "wide and not slow" -n auto --dist load "$@" ;;&
    slow | all) run -m slow "$@" ;;
esac
