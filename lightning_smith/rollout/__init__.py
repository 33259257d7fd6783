"""What runs once a task: workspace, agent loop, diff, grading, outcome."""
