"""Studies: lists of training runs that answer one question, trained and measured in pieces of limited time.

    python -m research.studies list [STUDY...]
    python -m research.studies run STUDY... --seconds 560 --home FOLDER
    python -m research.studies unpack FOLDER
    python -m research.studies send [STUDY...] --to FOLDER
    python -m research.studies keep [STUDY...]

``run`` trains and evaluates what is not done yet, in the order of the list, so many runs side by side as
the study says, and packs at the end what another machine needs to go on and what the tables need. The same
command goes on where it stopped. ``unpack`` takes that apart where it is kept, ``send`` packs what another
machine needs to go on, to be unpacked there, and ``keep`` puts results of
runs that are done into ``results`` and their metrics into ``docs/runs``; `georoutenet tables results` makes
its tables from them.

A study is a TOML file in this folder, or a path (`research.studies.plan`).
"""
