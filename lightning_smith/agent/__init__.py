"""One rollout: the loop between policy and workspace, the guard of commands, the trajectory."""
