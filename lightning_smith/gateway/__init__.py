"""Client of the Agent Lightning gateway, durable rollout log, launch and health of its services."""
