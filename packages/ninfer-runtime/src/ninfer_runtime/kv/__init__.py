"""What a sequence leaves behind for its next token."""

from ninfer_runtime.kv.cache import KVCache
from ninfer_runtime.kv.recurrent import DeltaNetState
from ninfer_runtime.kv.sequence import HybridState

__all__ = ["DeltaNetState", "HybridState", "KVCache"]
