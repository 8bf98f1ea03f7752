"""What methods with local steps share: local training, servers with and without duals, client weights, measures."""
