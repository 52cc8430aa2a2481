"""`python -m notbefore`."""

import sys

from notbefore.cli.main import main

sys.exit(main())
