"""SimFBO and ShroFBO against FedNest, LFedNest and FBO-AggITD."""
