# make quickstart | test | slow | docs | prepare | lab | readme | build | clean. Everything runs in .venv, which is made when needed.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS ?= dev
NOTEBOOK := nbs/tutorials/quickstart.ipynb
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: venv quickstart test slow docs prepare lab readme build clean

venv: .venv/ready

.venv/ready: settings.ini setup.py
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  f"ptwrap needs Python 3.11 or newer and {sys.executable} is {v[0]}.{v[1]}: make venv PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (the first time this takes minutes: torch is large)"
	@$(BIN)/python -m pip install -q -e '.[$(EXTRAS)]'
	@sh nbs/_ext/hooks.sh
	@touch $@

.venv/docs: .venv/ready
	@$(BIN)/python -m pip install -q -e '.[docs]'
	@touch $@

quickstart: venv
	@$(BIN)/python nbs/_ext/run_nb.py $(NOTEBOOK) accuracy
	@echo "Open it yourself: $(BIN)/jupyter lab $(NOTEBOOK)"

test: venv
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/ty check
	$(BIN)/pytest -m "not slow"

slow: venv  # pytest's 5 means that there are no slow tests; -rs says what was skipped, and why
	$(BIN)/pytest -m slow -rs || [ $$? -eq 5 ]

docs: .venv/docs
	@rm -rf _docs
	$(BIN)/python nbs/_ext/nbstage.py docs
	$(BIN)/sphinx-build -W --keep-going -q -c nbs -d _proc/.doctrees _proc _docs
	@rm -rf jupyter_execute
	@echo "Read it: _docs/index.html"

prepare: venv
	$(BIN)/nbdev-export
	$(BIN)/nbdev-clean
	$(MAKE) readme test

readme: venv
	$(BIN)/python nbs/_ext/nbstage.py readme

lab: venv
	$(BIN)/jupyter lab nbs

build: venv
	$(BIN)/python -m build

clean:
	rm -rf _proc _docs dist build jupyter_execute .pytest_cache .ruff_cache .import_linter_cache
