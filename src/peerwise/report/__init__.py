"""The report of a run: one page that opens from disk, and the same numbers as JSON. Reads a run folder's files only.

folder.py     the run's files, whatever is broken in them named
journal.py    what run.log tells
verdict.py    whether it learned: held-out accuracy by stage, gains paired by problem
measured.py   evaluations as points, as a table, as answers side by side
curves.py     which charts there are, and their numbers
samples.py    every recorded group, and rewards over steps
disagreement.py  where reward, judge and gold are at odds about an answer
tokens.py     the figures of an answer's tokens, laid over its text
inert.py      texts that cannot hide or reorder anything
page.py       the pages: escaping, packing, the policy that forbids network; page/ holds templates, style and scripts
build.py      puts one run's report together and writes both files
overlay.py    curves of several runs over each other
comparison.py  puts the page of several runs together
"""

from peerwise.report.build import Report, build

__all__ = ["Report", "build"]
