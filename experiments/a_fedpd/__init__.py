"""FedAvg to A-FedPDSAM: partial participation and dual drift."""
