"""A deployment as text for people and schedulers, one module a format. No format starts anything."""
