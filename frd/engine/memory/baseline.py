from frd.engine.memory.levels import BATCH_NS, MOST, SECOND  # noqa: F401
from frd.engine.memory.recent import BIN_NS  # noqa: F401
from frd.engine.memory.series import REVEALED_NS  # noqa: F401
