"""What holds for all tests, wherever they are started from."""

import signal

from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

# A shell starts what it puts into the background with Ctrl-C ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
