"""Rows of SWE-smith and of the evaluation set: download, pins, columns, patches, the images that they name."""
