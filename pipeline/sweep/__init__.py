"""Many runs of one params.yaml: every seed with every combination of values, one after another or together."""
