"""A pytest plugin: plants the mistake whose number is in FRD_MUTANT before tests are collected."""

from __future__ import annotations

import os

from tests.mutants.edits import plant
from tests.mutants.table import MUTANTS

if number := os.environ.get("FRD_MUTANT"):
    mutant = MUTANTS[int(number)]
    plant(mutant.package, mutant.function, mutant.edit)
