"""Which rollout is made where, and which are done: pure state, no clock of its own, no actors."""
