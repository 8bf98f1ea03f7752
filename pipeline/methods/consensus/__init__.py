"""Methods with local steps: clients train by themselves between two exchanges with the server."""
