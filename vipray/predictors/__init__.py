"""Predictors of a prompt's success probability, one file each, behind one protocol."""
