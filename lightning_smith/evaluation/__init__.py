"""Predictions, the official harness, counts that must sum, paired statistics."""
