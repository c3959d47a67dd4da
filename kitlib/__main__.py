"""`python -m kitlib`: the command `kitlib` where no script of that name is on the path."""

import sys

from kitlib.cli import main

sys.exit(main())
