"""Agent Lightning's gateway and controller: client, tokens and guard, launch and health, durable rollout log."""
