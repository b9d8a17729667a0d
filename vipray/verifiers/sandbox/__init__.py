"""Runs untrusted Python: a process without network, files of the machine, environment or privileges.

`launch.py` is the trusted side. It starts `entry.py`, which shuts itself in (`isolation.py`) and then is either a
program between stdin and stdout (`program.py`), a module whose functions are called from outside (`subject.py`), or the
tests that call them (`judge.py`). Everything below imports the standard library alone.
"""
