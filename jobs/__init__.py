"""Entry points: each is a module for `ray job submit -- python -m jobs.NAME` and a subcommand of `vipray`."""
