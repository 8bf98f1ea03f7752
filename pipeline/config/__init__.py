"""How settings are declared, read and checked: machinery alone, and the sections that belong to no feature."""
