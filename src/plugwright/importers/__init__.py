"""Other plugins' configuration, read unchanged: one module per plugin, each independent of the others.

A module of a format has two functions, both pure:

    def recognises(source: ForeignConfig) -> bool           whether the file clearly has this format
    def translate(source: ForeignConfig) -> ImportResult    equivalent resources of plugwright, and notes for the user

`source.root` is the plugin's file, or None if there are only flags: a `ConfigValue`, which knows its line, and makes
errors with `value.error(...)` and notes with `value.note(...)`. `source.flags` and `source.environment` are those of
the plugin's container if a manifest was given, or the words after `--`; `source.domain` is --domain, or "". An
`ImportResult` holds one `ImportedResource` per resource: `content` goes under `resources:` in our file, `notes` above
it. If the plugin itself would reject a file, this raises ConfigError with its line; an unknown key gives a note.

To add a format, write its module and add one line to `cli.import_._FORMATS`. `source` unpacks ConfigMaps and
manifests before it tries the formats; the command does the printing.
"""

__all__: list[str] = []
