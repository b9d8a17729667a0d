"""Prompts: where they come from, in which order they are visited, and their embeddings."""
