"""The miniature's tasks: one-line bugs in small packages from PyPI, made by SWE-smith's own modifiers.

`table` reads what is committed under `assets/miniature/`; the other modules make it again from nothing:
`sources` (sdists), `reference` (the unbroken test run), `bugs` (candidate bugs), `validate` (which tests each
bug breaks) and `generate` (all of it, resumable).
"""
