"""What is optimised. A problem declares losses and draws minibatches; derivatives come from `pipeline.oracles`."""
