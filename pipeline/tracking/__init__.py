"""Sends the tracker what is already on disk: runs, figures, tables. Nothing here decides a result."""
