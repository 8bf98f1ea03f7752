"""What the tests of this family share."""

import pytest

from tests.core.bilevel.quadratic import random


@pytest.fixture(scope="module")
def problem():
    """Heterogeneous clients with a common lower level."""
    return random()
