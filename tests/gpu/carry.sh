#!/bin/sh
# Fills build/carry with what `make test-gpu` needs, for a machine with a GPU and without a network: the libraries of
# uv.lock for its Python, to be found by PYTHONPATH. Usage: tests/gpu/carry.sh [PYTHON_VERSION], such as 3.12
# There: PYTHONPATH=src:build/carry python3 -m pytest tests/gpu
set -eu
cd "$(dirname "$0")/../.."
version=${1:-3.12}
uv=.venv/bin/uv
rm -rf build/carry && mkdir -p build/carry
$uv export --quiet --frozen --all-groups --all-extras --no-emit-project --no-hashes --output-file build/locked.txt >/dev/null
$uv export --quiet --frozen --no-dev --extra nvidia --no-emit-project --no-hashes --output-file build/needed.txt >/dev/null
$uv pip install --quiet --target build/carry --python-version "$version" --python-platform x86_64-manylinux_2_28 \
  --only-binary :all: --constraints build/locked.txt -r build/needed.txt pytest pytest-asyncio pytest-timeout hypothesis
find build/carry -name __pycache__ -prune -exec rm -r {} +
du -sh build/carry
