"""The playground: a page in the browser, and the HTTP service behind it (``georoutenet serve``).

Bodies and answers are JSON (a body says so: ``Content-Type: application/json``). Errors are
``application/problem+json`` with ``type``, ``title``, ``status`` and ``detail``; the detail of a 400 is what
the Python functions say of the same input. 429 and 503 have ``Retry-After``.

- ``GET /``: the page. ``GET /static/...``: its files. ``GET /api``: the service, described.
- ``GET /healthz``: ``{"status": "ok", "version", "loaded": whether nothing is left to load}``.
- ``GET /api/limits``: ``{"cities", "seconds", "body_bytes", "searches", "queue", ...}``.
- ``GET /api/weights``: ``[{"name", "description", "encoder", "cities": [least, most] or null}]``.
- ``GET /api/examples``: ``[{"name", "title", "cities", "optimum": length or null}]``.
- ``GET /api/examples/{name}``: an instance.
- ``POST /api/instance?format=tsp|csv|tsv|txt|json|geojson``, body: the file's content, of any content type.
  Answers with an instance.
- ``POST /api/scores``, body: an instance and ``weights``. Answers ``{"edges": [[i, j, p], ...], "start":
  [p, ...]}``: undirected edges, ``i < j``, and the share of the network's tours that has each, the largest
  first; and the probability of each city to be the first.
- ``POST /api/solve``, body: an instance and options of ``solve`` under the same names. Answers ``{"tour",
  "length", "lower_bound", "gap_bound", "initial_length", "method", "notes", "timings", "interrupted", ...}``.
- ``POST /api/solve/stream``, the same body. Answers with server-sent events: ``first`` ``{"tour", "length",
  "method", "seconds"}``; ``tour`` ``{"tour", "length", "seconds", "iterations", "lower_bound"}`` when the
  best tour got shorter, at most 30 a second; ``bound`` ``{"lower_bound", "seconds"}``; at the end ``done``
  (what ``/api/solve`` answers) or ``problem``. A client that leaves stops its search.
- ``POST /api/export?format=tour|csv|geojson|gpx|json``, body: an instance, ``tour`` and ``closed``. Answers
  with the file.

An instance is ``{"name", "rule", "coordinates": [[x, y], ...] or null, "plane": [[x, y], ...] or null, "ids":
[...] or null, "columns": {name: [...]}, "matrix": [[...]] or null, "optimum": length or null, "unit": "km" or
null, "notes": [...]}``. Coordinates are degrees (latitude, longitude) under GREAT_CIRCLE. Requests need
``coordinates`` or ``matrix``; ``plane`` (for drawing), ``optimum``, ``unit`` and ``notes`` are for the reader
and may be left out or sent back as they are.
"""
