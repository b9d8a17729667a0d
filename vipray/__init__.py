"""VIP-Ray: reinforcement learning with verifiable rewards that spends rollouts where they teach (arXiv:2602.01601)."""

__version__ = "0.1.0"
