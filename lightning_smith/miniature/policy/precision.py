"""What the miniature's policy server computes in, by kind of policy."""

from __future__ import annotations

ROLLOUT_DTYPES = {"dense": "float32", "moe": "bfloat16"}
"""A mixture of experts in bfloat16, as a real rollout engine would, so that there is a gap to the float32 trainer
for router replay to close.
"""
