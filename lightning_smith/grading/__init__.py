"""Whether a patch solves a task: test runs in pristine trees, canary, altered tests, the second graders, validation."""
