"""Splitting a hard rollout budget over the prompts of a batch."""
