"""What every test relies on, however the suite was started."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite in the background of a script inherits an ignored interrupt, and its children would never feel Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
