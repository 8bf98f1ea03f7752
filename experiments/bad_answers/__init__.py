"""Bad clients, by their data or by what they send: learned weights against robust averaging."""
