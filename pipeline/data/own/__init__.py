"""A user's own data: reading folders, tables and arrays, and the record that turns raw samples into features.

The record is plain JSON, saved beside the data and applied by `preprocessing.apply`, in training and in a served model
alike.

| module | what |
|---|---|
| `targets` | classes with names, or numbers |
| `columns` | numbers and categories of a table; what a federation can compute of them |
| `scales` | values far off and clients in other units: named, and without a say in a scale |
| `features` | the record of a table or of arrays, applied; served models carry a copy |
| `preprocessing` | any record, applied |
| `tables`, `images` | files read |
| `assembling` | the parts together: a data set in memory, with notes on what looks odd |
"""
