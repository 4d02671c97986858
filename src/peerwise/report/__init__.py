"""The report of a run: one page that opens from disk, and the same numbers as JSON. Reads a run folder's files only.

folder.py     the run's files, whatever is broken in them named
journal.py    what run.log tells
verdict.py    whether it learned: held-out accuracy by stage, gains paired by problem
measured.py   evaluations as points, as a table, as answers side by side
curves.py     which charts there are, and their numbers
samples.py    every recorded group, and rewards over steps
page.py       the page: escaping, packing, the policy that forbids network; page/ holds template, style and scripts
build.py      puts the parts together and writes both files
"""

from peerwise.report.build import Report, build

__all__ = ["Report", "build"]
