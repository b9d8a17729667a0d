"""The learner: loss, packed groups, FSDP2 ranks, published weights. Torch is imported here only."""
