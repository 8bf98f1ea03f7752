"""Short examples of one's own, each tested: a method (`trimmed`), a partition scheme (`one_label`) and a problem
(`smoothed`). DVC watches this folder."""
