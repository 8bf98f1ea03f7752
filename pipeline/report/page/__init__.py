"""report.html: a page that a colleague reads alone, in one file, without a network.

What is said where is decided in the modules here, as plain values; the templates lay them out and escape them. Names of
clients and classes may hold anything.
"""
