"""The child process of a measurement: its task is JSON on stdin, its result JSON in the last line of stdout."""

import json
import sys

from jobs.bench.measure import carry_out

if __name__ == "__main__":
    result = carry_out(json.load(sys.stdin))
    print("\n" + json.dumps(result))
