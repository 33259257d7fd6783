"""Modules that other processes start by name: no import shows these dependencies."""

AGENT = "lightning_smith.rollout.agent"
AGENT_CLASS = f"{AGENT}:Agent"
"""What Agent Lightning's runner instantiates."""

POD_TASKS = "lightning_smith.rollout.pod_tasks"
EXECUTOR = "lightning_smith.rollout.executor"
SANDBOX_CHECK = "lightning_smith.rollout.bwrap"

GATEWAY_SERVER = "lightning_smith.gateway.server"
RUNNER = "lightning_smith.gateway.runner"
POLICY_SERVER = "lightning_smith.mini.server"
SMITH_HARNESS = "lightning_smith.tasks.smith_harness"

IN_IMAGES = (EXECUTOR, AGENT, POD_TASKS)
"""Modules that are started inside images; what they import of this package goes with them."""
