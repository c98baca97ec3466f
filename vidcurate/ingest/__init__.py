"""From somebody's list of captioned videos to the table: one adapter per source, every row accounted for."""

from vidcurate.ingest.recognise import SCHEMAS
from vidcurate.ingest.run import IngestSummary, run_ingest
from vidcurate.ingest.spec import IngestSpec

__all__ = ["SCHEMAS", "IngestSpec", "IngestSummary", "run_ingest"]
