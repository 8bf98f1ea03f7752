"""The Lightning module around the federated loop, its record, saves, resume and evaluation."""
