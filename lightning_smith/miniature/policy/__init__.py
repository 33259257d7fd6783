"""The laptop's model backend: tiny policy, warm start, policy server, GRPO trainer with router replay."""
