"""What all commands share: exit statuses, and errors as one line on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from vipray.errors import ConfigError, VipRayError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_TERMINATED = 143  # 128 + SIGTERM


def exit_status(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Carry out a command; turn errors that are meant for the user into one line and an exit status."""
    try:
        return command(args)
    except ConfigError as error:
        return _fail(error, EXIT_BAD_INPUT)
    except VipRayError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        print("vipray: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _fail(error: Exception, status: int) -> int:
    print(f"vipray: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status
