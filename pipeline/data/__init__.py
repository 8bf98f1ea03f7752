"""Data: where images come from, their canonical form on disk, who holds what, and all of it on the device.

| module | what |
|---|---|
| `sets` | the data sets, one record and one file each: what is known of one before it is read, and its reader |
| `originals` | original files from a mirror, the system or the public sources, verified; their formats |
| `raw` | a data set in memory |
| `datasets` | the canonical form on disk: prepare, load |
| `schemes`, `partition` | who holds what: one record, one file, one hash |
| `arrays`, `scaling` | samples handed over as arrays; from stored numbers to network inputs (both import torch) |
| `federated` | all clients' samples as tensors on the device (imports torch, so it is not imported here) |
"""
