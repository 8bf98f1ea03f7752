"""Short examples of one's own, each tested: a method (`trimmed`) and a partition scheme (`one_label`). DVC watches this
folder."""
