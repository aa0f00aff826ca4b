# make demo, make test and make translate TEXT="..." create .venv if it is missing, and install the
# dependencies.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

DEMO_SENTENCES := "Today the old man gives a red book to the child." \
	"The girls have seen my black cat because the dog can hear the horse." \
	"We must bring these flowers to a friend in the small garden."

# Pass TEXT through the environment, so that the shell does not interpret quotes and dollar signs.
export TEXT ?= The little dog runs across the green grass.

.PHONY: demo translate test versions check format clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	rm -rf runs/demo
	$(BIN)/python scripts/train_translation.py recipes/demo.yaml --output_dir runs/demo
	$(BIN)/python scripts/translate.py --model runs/demo --text $(DEMO_SENTENCES)
	$(BIN)/python scripts/show_attention.py --model runs/demo --output runs/demo/attention.png \
		--text "Today the old man gives a red book to the child."
	$(BIN)/python scripts/check_reload.py --model runs/demo --text $(DEMO_SENTENCES)
	@echo "Trained model, scores, card and pictures are in runs/demo."

translate: $(INSTALLED)
	@$(BIN)/python scripts/translate.py --model checkpoints/aiayn-en-de --text "$$TEXT"

test: $(INSTALLED)
	$(BIN)/pytest

# Saved folders under other releases of transformers, one environment for each.
versions: $(INSTALLED)
	$(BIN)/python tests/versions

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .versions runs build *.egg-info
