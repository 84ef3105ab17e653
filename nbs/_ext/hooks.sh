# Sets git's merge and diff drivers for notebooks, in this clone only: nothing outside .git is written.
# `git diff` then shows cells as text (raw: `git diff --no-ext-diff`), and a merge ignores differences of counts and outputs.
[ -e .git ] || exit 0
attributes=$(git rev-parse --git-path info/attributes 2>/dev/null) || exit 0
git config merge.jupyternotebook.name "cells of notebooks"
git config merge.jupyternotebook.driver "'$PWD/.venv/bin/nbdev-merge' %O %A %B %P"
git config diff.jupyternotebook.command "'$PWD/.venv/bin/nbdev-diff-driver'"
mkdir -p "$(dirname "$attributes")"
grep -qs jupyternotebook "$attributes" || echo "*.ipynb merge=jupyternotebook diff=jupyternotebook" >>"$attributes"
