#!/usr/bin/env bash
# The project's tests: sets up .venv where it is missing or unfinished, then the fast tests, then the slow ones.
#   bash scripts/run_tests.sh [fast|slow|all] [pytest arguments]     (default: all)
# fast: no Ray, no vLLM; some four minutes on two cores. slow: end to end; Linux only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=all
case "${1:-}" in
    fast | slow | all) what=$1 && shift ;;
    -h | --help) sed -n '2,4s/^# //p' "$0" && exit 0 ;;
esac

if [ "$(cat .venv/.ragen-setup 2>/dev/null)" = incomplete ] || [ ! -x .venv/bin/python ]; then
    bash scripts/setup_ragen.sh
fi

# half of the fast tests' time is imports: a process per core, each with whole files
[ "$what" = slow ] || .venv/bin/python -m pytest -m "not slow" -n auto --dist loadfile "$@"
[ "$what" = fast ] || .venv/bin/python -m pytest -m slow "$@"
