"""Short examples of one's own, each tested: a method (`trimmed`). DVC watches this folder."""
