from frd.engine.memory.levels import SECOND, MOST  # noqa: F401
from frd.engine.memory.series import BATCH_NS, REVEALED_NS  # noqa: F401
from frd.engine.memory.recent import BIN_NS  # noqa: F401
