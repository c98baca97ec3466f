"""Tests of vidcurate.curation.review_decisions."""
