"""A training that is disturbed on purpose: the cluster, what is killed when, and what came of it."""
