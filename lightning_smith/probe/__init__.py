"""Difficulty of tasks: pass rates from the rollout log, selection, train and validation split."""
