"""The embedded digits."""

from tests.training.conftest import digits as digits
