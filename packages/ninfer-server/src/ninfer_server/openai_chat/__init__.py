"""``POST /v1/chat/completions``.

`schema` says which types a request may have, `translate` and the modules beside it what the fields
mean, `respond` and `stream` how a result is written, `router` joins them.
"""
