"""Where commands of a policy and tests run: bubblewrap, Docker containers, pods; how a diff is taken and applied."""
