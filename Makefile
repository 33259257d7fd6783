# Two commands, on a machine that has nothing but Python and pip. Each gets uv by itself where it is missing.
.PHONY: mini test test-all check

mini:   ## the whole experiment in miniature -> results/mini/tables/main.md
	@scripts/with-uv uv run --frozen snakemake --profile mini

test:   ## the tests, a file's tests in one process; of attacks and whole experiments a part, drawn by the commit
	@scripts/with-uv uv run --frozen pytest

test-all: ## every attack in every kind of workspace, every experiment run again
	@scripts/with-uv uv run --frozen pytest --all

check:  ## format, lint, types
	@scripts/with-uv sh -c 'uv run --frozen ruff check . && uv run --frozen ruff format --check . && uv run --frozen snakefmt --check Snakefile rules && uv run --frozen --group types pyright'
