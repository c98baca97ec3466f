"""vidcurate: captioned video in; a judged table, difficulty levels, trusted shards and a loader out.

Importing the package loads nothing heavy: decode workers and GPU machines import single modules.
"""

__version__ = "0.1.0"
