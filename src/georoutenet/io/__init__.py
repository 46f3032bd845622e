"""Files: instances and tours of every format, TSPLIB, data sets, the cache, provenance."""
