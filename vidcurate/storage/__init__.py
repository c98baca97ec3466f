"""Storage: files and object stores as bytes.

`atomic_file` writes files whole or not at all, `lock` gives one process the right to write,
`object_store` and `ranges` read by URL and byte range, `http_pool` reuses connections, `url_cache` keeps
what was read, `download` fetches whole files, `checksum` is CRC-32C, `standard_streams` opens those that
a command was started without.
"""
