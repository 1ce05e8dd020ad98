"""Other plugins' configuration files, read as they are: one module per peer, each ignorant of the others.

A module of a format has two functions, both pure:

    def recognises(source: Source) -> bool          is this plainly one of its files?
    def translate(source: Source) -> Imported       the same in our words, and what its user should know

`source.root` is the peer's file (a `Value`: parsed, knows its lines, errors are made with `value.error(...)` and
warnings with `value.note(...)`), or None where there are only flags; `source.flags` and `source.environment` are those
of the peer's container where a manifest was given, or the words after `--`; `source.domain` is --domain, "" where it
was not given. `Imported` holds one `Entry` per resource: `content` is what stands under `resources:` in our file,
`notes` what is said above it. A file that the peer itself would refuse is a ConfigError with its line; a key that the
peer does not know is a note.

A new format is its module and one line in `cli.import_._FORMATS`. ConfigMaps and manifests are taken apart by
`wrapping` before any of these is asked; the printing is the command's.
"""

__all__: list[str] = []
