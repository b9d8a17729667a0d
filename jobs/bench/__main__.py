"""`python -m jobs.bench`."""

import sys

from jobs.bench.command import main

sys.exit(main())
