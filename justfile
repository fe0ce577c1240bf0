# List the recipes.
default:
    @just --list

# Install everything into .venv; `just sync cuda13` adds CuPy for CUDA 13.
sync extra="":
    uv sync --all-packages {{ if extra == "" { "" } else { "--extra " + extra } }}

# Format the code.
fmt:
    uv run --no-sync ruff format .
    uv run --no-sync ruff check --fix .

# Fail if the code is not formatted.
fmt-check:
    uv run --no-sync ruff format --check .

# Static checks of style and of common mistakes.
lint:
    uv run --no-sync ruff check .

# Static types: strict for the packages, checked bodies for the tests.
types:
    uv run --no-sync mypy

# Which package may import which.
imports:
    uv run --no-sync lint-imports

# The tests that need no GPU.
test *args:
    uv run --no-sync pytest {{ args }}

# The tests that need an NVIDIA GPU; fails if one of them was skipped.
test-gpu *args:
    uv run --no-sync pytest -m gpu --require-gpu {{ args }}

# Backtraces of Python would keep arrays alive whose memory a recorded step uses again.
# A few cases of each test of an op under compute-sanitizer: memcheck, racecheck, initcheck or synccheck.
sanitize-gpu tool="memcheck" *args:
    uv run --no-sync compute-sanitizer --tool {{ tool }} --target-processes all --error-exitcode 1 \
        --show-backtrace device pytest -m gpu --require-gpu --cases 3 --timeout 3600 tests/runtime/ops {{ args }}

# Compile every kernel for every architecture; needs no GPU.
kernels *args:
    uv run --no-sync ninfer-bench --compile-only {{ args }}

# Speed of ops on the GPU, beside what its memory gives at most.
bench-ops *args:
    uv run --no-sync ninfer-bench --ops linear {{ args }}

# Feed damaged files to the reader for some seconds; what breaks it is kept in .fuzz/.
fuzz seconds="300":
    OPENBLAS_NUM_THREADS=1 uv run --no-sync python -m tests.fuzz.reader {{ seconds }}

# Speed of the CPU path with the built-in model.
bench-cpu *args:
    uv run --no-sync ninfer-bench --backend cpu {{ args }}

# Speed of a model on the GPU; without a name, of the built-in one.
bench *args:
    uv run --no-sync ninfer-bench --backend cuda {{ args }}

# Rebuild the model that ninfer-runtime ships.
builtin-model *args:
    uv run --no-sync python tools/build_builtin_model.py {{ args }}

# Measure all recipes on the tiny model and write docs/quality.md; finished work stays in `folder`.
quality folder *args:
    uv run --no-sync python tools/quality_table.py {{ folder }} {{ args }}

# Everything that CI runs.
check: fmt-check lint types imports test

# Build the wheels of all packages.
build:
    uv build --all-packages

# Remove caches and build results.
clean:
    rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
