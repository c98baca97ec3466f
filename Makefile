# make demo   install into .venv and run the whole pipeline on generated data
# make test   the test suite (eight minutes on two quick cores)
# make test-engines   install Ray, sshd, Chromium, ffmpeg, other readers and trainers, and run the tests that need them
# make check  format, lint, types
# make bench  measure probe and tables here, then print every kept result as one table
# make gpu    the kernels' tests on this machine's GPU, and how far blocks are from float32 there
# make soak   the long tests: faults, and that a model trained from nothing follows its prompts
.PHONY: demo test test-engines check bench gpu soak install clean
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.installed-dev
TRAINERS := $(VENV)/trainers/.installed
# Test processes side by side: a quarter of a process's time is waiting (for ranks, kills, timeouts). Three kept
# two cores 84 % busy, four 94 %.
JOBS ?= 4
# One thread per process keeps float sums in one order and leaves the cores to the workers.
export OMP_NUM_THREADS ?= 1
export PYTHONUNBUFFERED := 1
# Modules are compiled once, where they are first used: not by pip, which takes 15 s for all of them, and not in
# each of the two thousand processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

install: $(DEVELOPED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vidcurate needs Python 3.11 or newer; this is %d.%d. Set PYTHON=…" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[train,score]'
	touch $@

$(DEVELOPED): $(INSTALLED)
	$(PIP) -c constraints.txt -e '.[train,score,dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/vidcurate demo-data demo/data
	$(BIN)/vidcurate curate recipes/curate-demo.yaml
	$(BIN)/python -m trainer launch recipes/smoke.yaml --nproc-per-node 2
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/follows.py demo/train --picture demo/samples.png
	@printf '\nLook at:\n  %s\n  %s\n  %s\n  %s\n' \
	  'demo/run/report.html      what was kept and rejected, and why' \
	  'demo/train/gallery.html   samples over steps, and the loss' \
	  'demo/samples.png          eight prompts, frame by frame' \
	  'demo/train/metrics.jsonl  every step'

test: $(DEVELOPED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not soak and not gpu and not engine" $(TESTS)

# Five trainers' own dataset code, apart from the environment; finetrainers needs an older `datasets`.
$(TRAINERS): tests/trainers.txt $(DEVELOPED)
	rm -rf $(@D)
	{ pip="$(PIP) --no-deps --target"; \
	$$pip $(@D) -r tests/trainers.txt && $$pip $(@D)/datasets3 datasets==3.3.2 && touch $@; } || \
	echo "missing: the packages of tests/trainers.txt"

# Debian packages are installed where they may be; a test that misses its program fails here.
test-engines: $(DEVELOPED) $(TRAINERS)
	$(PIP) --no-deps -c constraints.txt -r tests/engines.txt
	@PATH=$$PATH:/usr/sbin; missing=; has() { command -v $$1 >/dev/null; }; \
	has sshd || missing="$$missing openssh-server"; has ssh || missing="$$missing openssh-client"; \
	has chromium || has chromium-browser || has google-chrome || missing="$$missing chromium"; \
	has ffmpeg || missing="$$missing ffmpeg"; \
	if [ -n "$$missing" ]; then root=; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
	  { $$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
	    --no-install-recommends $$missing >/dev/null; } || echo "missing:$$missing. Run apt-get install$$missing"; fi
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --engines -m engine $(TESTS)

KERNEL_TESTS := $(addprefix tests/trainer/,model/encoders/test_fast_vae.py model/kernels/test_float8.py model/kernels/test_matmul.py model/kernels/test_attention_choice.py training/optim/test_update_kernel.py)
gpu: $(DEVELOPED)
	$(BIN)/python -m pytest --gpu $(KERNEL_TESTS)
	$(BIN)/python benchmarks/block_distance.py

check: $(DEVELOPED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: $(DEVELOPED)
	$(BIN)/python -m pytest -m soak -s --timeout=0
	$(BIN)/python benchmarks/loader_soak.py

bench: $(DEVELOPED)
	$(BIN)/python benchmarks/run.py probe tables

clean:
	rm -rf $(VENV) demo build *.egg-info
