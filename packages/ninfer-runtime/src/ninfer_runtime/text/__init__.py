"""From a caller's chat to token ids, and from generated token ids to text, thoughts and calls.

::

    PromptInput -> chat.py -> template.py -> prompt.py -> PreparedPrompt
    token id -> detokenizer.py -> parsers/reasoning.py -> stop.py -> parsers/tool_calls.py
             -> output.py -> OutputDelta

`frontend.py` is the way in: it builds all of this from the resources of an artifact.
"""
