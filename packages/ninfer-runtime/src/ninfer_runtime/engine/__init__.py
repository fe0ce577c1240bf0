"""The engine: it queues requests, runs them one after another and publishes what they produce.

`options` and `request` hold the values that callers exchange with it and import nothing heavy;
`engine` holds the engine itself. Import from those modules: this one stays empty so that a command
can build its help without loading a model.
"""
