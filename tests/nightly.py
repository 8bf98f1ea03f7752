"""Whether this is `make nightly`: every command of the documentation, more damages, kills at random."""

import os

NIGHTLY = "FEDBILEVEL_NIGHTLY" in os.environ
