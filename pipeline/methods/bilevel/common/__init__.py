"""What methods of general bilevel learning share: directions, nested steps, hypergradients, momentum."""
