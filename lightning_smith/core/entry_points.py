"""Modules that other processes start by name: no import shows these dependencies."""

AGENT = "lightning_smith.agent.rollout"
AGENT_CLASS = f"{AGENT}:Agent"
"""What Agent Lightning's runner instantiates."""

POD_TASKS = "lightning_smith.grading.pod_tasks"
EXECUTOR = "lightning_smith.sandbox.executor"
SANDBOX_CHECK = "lightning_smith.sandbox.bwrap"

GATEWAY_SERVER = "lightning_smith.gateway.server"
RUNNER = "lightning_smith.gateway.runner"
POLICY_SERVER = "lightning_smith.miniature.policy.server"
SMITH_HARNESS = "lightning_smith.grading.smith_server"

IN_IMAGES = (EXECUTOR, AGENT, POD_TASKS)
"""Modules that are started inside images; what they import of this package goes with them."""
