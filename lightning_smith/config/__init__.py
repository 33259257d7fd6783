"""The configuration: which backends there are, recipes, the settings that a stage hands to its rollouts, and checks."""
