"""The Qwen3.5 family: Gated DeltaNet and full attention layers, dense feed-forward."""
