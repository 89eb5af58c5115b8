"""Builders of the objects of a run. They return plain dictionaries and call nothing."""
