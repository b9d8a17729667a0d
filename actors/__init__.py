"""Thin Ray shells over the library, and the controller that drives them. Decisions live in `vipray`."""
