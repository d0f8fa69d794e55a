"""python -m librope.cli"""

import sys

from . import main

sys.exit(main())
