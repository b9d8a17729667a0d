"""Generator engines behind one protocol: vLLM, and a scripted one for simulations. vLLM is imported here only."""
