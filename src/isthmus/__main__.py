"""`python -m isthmus` is the same as `isthmus`."""

import sys

from isthmus.cli.main import main

sys.exit(main())
