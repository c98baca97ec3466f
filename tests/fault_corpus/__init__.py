"""A corpus of damaged files with its truth: what every level of `vidcurate probe` is measured on.

Small clean clips with sound in eight containers (`clips`), and beside each one the same clip broken in eight
ways at several severities (`cases`). The same call gives the same bytes.
"""

from tests.fault_corpus.cases import KINDS as KINDS
from tests.fault_corpus.cases import Case as Case
from tests.fault_corpus.cases import write_corpus as write_corpus
from tests.fault_corpus.clips import CONTAINERS as CONTAINERS
