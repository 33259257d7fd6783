"""SWE-smith rows: columns, streaming reads, filters, the funnel ledger; the generator of miniature tasks."""
