"""`python -m jobs.chaos`."""

import sys

from jobs.chaos.command import main

sys.exit(main())
