"""General federated bilevel learning: an upper variable x and a lower variable y, each client with its own losses."""
