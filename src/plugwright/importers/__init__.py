"""Other plugins' configuration, read as it is: one module per plugin, each independent of the others.

A module of a format has two functions, both pure:

    def recognises(source: ForeignConfig) -> bool           whether this is clearly one of its files
    def translate(source: ForeignConfig) -> ImportResult    the same as resources of ours, and notes for the user

`source.root` is the plugin's file, or None where there are only flags: a `ConfigValue`, which knows its line, and makes
errors with `value.error(...)` and notes with `value.note(...)`. `source.flags` and `source.environment` are those of
the plugin's container where a manifest was given, or the words after `--`; `source.domain` is --domain, or "". An
`ImportResult` holds one `ImportedResource` per resource: `content` stands under `resources:` in our file, `notes` above
it. A file that the plugin itself would refuse is a ConfigError with its line; a key that it does not know is a note.

A new format is its module and one line in `cli.import_._FORMATS`. ConfigMaps and manifests are read by `source` before
any format is asked; printing is left to the command.
"""

__all__: list[str] = []
