"""What a sandboxed interpreter runs: `python -I -S entry.py [SOCKET]`, with a task at the beginning of stdin.

The task says what to be (`program`, `subject` or `judge`), with which limits and on what. `ENTERED` on stderr says that
the sandbox is up; what comes before it is why not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":  # isolated, the interpreter knows of no package
    sys.path.append(str(Path(__file__).parents[3]))

from vipray.verifiers.sandbox import isolation, judge, program, subject
from vipray.verifiers.sandbox.values import receive_from_file

ENTERED = b"entered\n"


def main() -> None:
    """Enter the sandbox and do the task."""
    task = receive_from_file(0)
    assert task is not None
    channel = int(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        isolation.enter(isolation.Limits(**task["limits"]))
    except OSError as error:
        sys.exit(str(error))
    os.write(2, ENTERED)
    sys.argv = ["answer.py"]
    sys.path.pop()
    match task["role"]:
        case "program":
            program.run(task["code"])
        case "subject":
            assert channel is not None
            subject.serve(task["code"], channel)
        case "judge":
            assert channel is not None
            judge.run(task["tests"], channel)


if __name__ == "__main__":
    main()
