"""Coding-agent reinforcement learning from SWE-smith to SWE-bench Verified.

One sub-package per room: tasks, images, rollout, gateway, probe, training, mini, evaluation, report.
"""

__version__ = "0.1.0"
