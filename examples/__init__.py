"""Short examples of custom code, each tested: a method (`trimmed`), a partition scheme (`one_label`) and a problem
(`smoothed`). DVC watches this folder."""
