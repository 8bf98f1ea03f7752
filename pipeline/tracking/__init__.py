"""MLflow: sends it what is already on disk. Nothing here decides a result, and nothing else needs it."""
