"""Rank 0 fails in the first worker group; all ranks succeed in the second."""

import os
import sys
import time

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0":
        sys.exit(1)
    time.sleep(60)  # until the launcher stops this rank
