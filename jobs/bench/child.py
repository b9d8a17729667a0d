"""The child process of a measurement: the task comes as JSON on stdin, the result goes as JSON to stdout."""

import json
import sys

from jobs.bench.measure import carry_out

if __name__ == "__main__":
    json.dump(carry_out(json.load(sys.stdin)), sys.stdout)
