# Two commands, on a machine that has nothing but Python and pip. Each gets uv by itself where it is missing.
.PHONY: mini test check

mini:   ## the whole experiment in miniature -> results/mini/tables/main.md
	@scripts/with-uv uv run --frozen snakemake --profile mini

test:   ## all tests, a file's tests in one process
	@scripts/with-uv uv run --frozen pytest

check:  ## format, lint, types
	@scripts/with-uv sh -c 'uv run --frozen ruff check . && uv run --frozen ruff format --check . && uv run --frozen snakefmt --check Snakefile rules && uv run --frozen --group types pyright'
