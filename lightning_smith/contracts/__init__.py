"""Records that pass between stages: tasks, outcomes of rollouts, verdicts of validation."""
