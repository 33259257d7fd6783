"""From the release to the candidates: filters, the ledger of what was dropped, overlap with the evaluation set."""
