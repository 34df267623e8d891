"""A deployment becomes running servers, and nothing outlives the run.

This module stays empty of imports: the supervisor loads it and has to stay small.
"""
