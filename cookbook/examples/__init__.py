"""The client examples of every page: the code that a reader copies, run against a real server and judged."""

from cookbook.examples.context import Context, Outcome
from cookbook.examples.judged import EXAMPLES, Example
from cookbook.examples.source import prose, source

__all__ = ["EXAMPLES", "Context", "Example", "Outcome", "prose", "source"]
