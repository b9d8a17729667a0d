"""Judging predictors and allocation policies on logs, without training anything."""
