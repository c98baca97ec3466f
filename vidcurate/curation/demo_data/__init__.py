"""Demo data: generated clips with true captions, some damaged on purpose.

`scene` draws a clip and its caption, `choose` selects the clips of a data set, `write` writes it,
`damage` breaks files.
"""
