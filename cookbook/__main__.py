"""`python -m cookbook`, for where the command is not on PATH."""

from cookbook.cli import main

main(prog_name="cookbook")
