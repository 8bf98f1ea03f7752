"""Data sets, a file each: what is known of one before it is read, where its files come from, and its reader.

A new one is a file and a line in `registry`; one of a user's own needs no line: `data.name` is then its dotted path.
"""
