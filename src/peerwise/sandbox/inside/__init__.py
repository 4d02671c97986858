"""What runs behind the walls: the program's process, the tests' process, and the guard of both where there is no
bubblewrap. Started by path with the standard library alone, so that a start costs little and nothing else is readable;
imports within are relative for that reason. Knows nothing of the rest of the package.
"""
