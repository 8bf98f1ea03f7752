"""The pipeline's stages, each a command: `python -m stages.<name>`."""

import sys

from pipeline import interruption

if any(word.startswith("stages.") for word in sys.orig_argv):
    interruption.install()
