# make demo, make test and make translate TEXT="..." create .venv if it is missing, and install the
# dependencies.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

# Waiting threads soon leave the cores to other programs: see aiayn.py.
export GOMP_SPINCOUNT ?= 10000

TEXT ?= The little dog runs across the green grass.
# Pass TEXT through the environment as it is: neither make nor the shell expands its dollar signs.
override export TEXT := $(value TEXT)

.PHONY: demo translate test test-long test-processors versions clients docs check format clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	rm -rf runs/demo
	$(BIN)/aiayn demo --output_dir runs/demo

translate: $(INSTALLED)
	@$(BIN)/aiayn translate --text "$$TEXT"

test: $(INSTALLED)
	$(BIN)/pytest

# Whole processes: scripts, notebooks, the wheel, two trainers.
test-long: $(INSTALLED)
	$(BIN)/pytest -m "long and not slow"

# The tests that depend on the processor, with AVX2 instructions alone, and without oneDNN and vectors.
PROCESSOR_TESTS := $(patsubst %,tests/test_%.py,translation search bundled_model dropout compiled \
	int8 blockwise_attention)

test-processors: $(INSTALLED)
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 CT2_FORCE_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell \
		NUMBA_CPU_FEATURES=+avx2,+fma $(BIN)/pytest $(PROCESSOR_TESTS)
	PLAIN_KERNELS=1 NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= $(BIN)/pytest $(PROCESSOR_TESTS)

# The pinned versions for other Pythons and systems, saved folders under other releases of
# transformers, and the package with the lowest versions.
versions: $(INSTALLED)
	$(BIN)/python tests/versions/installable.py
	$(BIN)/python tests/versions
	$(BIN)/python tests/versions/oldest.py

# Other libraries that use a saved folder, each in an environment of its own.
clients: $(INSTALLED)
	$(BIN)/python tests/clients

# The site, in build/site. A warning, such as a link that leads nowhere, is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .versions runs/demo build *.egg-info
