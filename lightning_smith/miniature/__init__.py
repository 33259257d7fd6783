"""The laptop's experiment: its tasks, their repositories and images, its policies and their trainer."""
