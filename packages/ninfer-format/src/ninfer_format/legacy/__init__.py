"""Container versions 1 and 2, and the way from them to version 3.

A version 2 file has no components, bindings or uses: programs knew them by the model's identity.
The tables of that knowledge, for the models that were published, are the modules here (container
specification, section 11).
"""
