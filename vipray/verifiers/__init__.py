"""Verifiers: from a completion's text to a reward and an outcome, one file each."""
