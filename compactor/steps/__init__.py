"""The steps of a round, as the functions that an engine's tasks run: blocks of arrays in, blocks of arrays out.

    hash_bucket   reads key and sort columns, digests the keys, groups row pointers by hash bucket
    dedupe        folds a bucket's row pointers into the index, finds the survivors
    materialize   reads source files, writes the surviving rows into compacted files
    rehash        moves index rows to another bucket count

Per row, only a pointer record crosses the network; rows are copied from file to file within one materialize task.
"""
