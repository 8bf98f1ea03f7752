"""Real sites: the methods of `pipeline.methods` on clients that answer over a network. `docs/federation.md`."""
