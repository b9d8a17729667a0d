"""How long allocation and prediction take, beside what one would otherwise use; `python -m jobs.bench`."""
