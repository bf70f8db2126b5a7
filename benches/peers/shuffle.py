#!/usr/bin/env python3
"""Measures an exchange beside DataFusion on the same record batches, in one interleaved run, and prints a Markdown table.

    make wheel
    benches/peers/shuffle.py                          # 512 MiB, five rounds
    benches/peers/shuffle.py --mib 1024 --rounds 9

Both start with the same batches of eight 64-bit columns in memory and end with batches in memory:
  partition   rows go to 64 partitions by the hash of one column; DataFusion: an anti join with one row, in 64 hash partitions. A repartition that
              nothing needs is taken out of its plans
  sort        rows are sorted by that column; here: a range exchange, then pyarrow sorts each partition; DataFusion: sort
Each measurement is made on one core and on two. After each, the rows and the sum of the key column are checked, and that every partition is
in order. Each measurement has a process of its own, which does it once to warm up.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

COLUMNS, ROWS_PER_BATCH, PARTITIONS = 8, 65_536, 64
WHATS = ('partition', 'sort')
WHO = ('transfer', 'DataFusion')


def batches(mib):
    """The data: a random key, and seven columns that depend on the number of the row."""
    import numpy as np
    import pyarrow as pa

    rng, found = np.random.default_rng(7), []
    for at in range(0, mib * 2**20 // (8 * COLUMNS), ROWS_PER_BATCH):
        columns = [rng.integers(-(2**62), 2**62, ROWS_PER_BATCH)]
        columns += [np.arange(at, at + ROWS_PER_BATCH) * factor for factor in range(1, COLUMNS)]
        found.append(pa.record_batch(columns, names=['key', *(f'c{n}' for n in range(1, COLUMNS))]))
    return found


class Transfer:
    """One process with a sidecar inside. Each core has a task, and each reads its share of the partitions."""

    def __init__(self, data, cores):
        import transferd

        bytes_of_data = sum(batch.nbytes for batch in data)
        self.data, self.cores = data, cores
        # The exchange before this one may still hold its memory.
        self.client = transferd.embedded(arena=3 * bytes_of_data)
        self.number = 0

    def exchange(self, read, **by):
        import concurrent.futures

        self.number += 1
        with (
            self.client.exchange(f'shuffle-{self.number}', partitions=PARTITIONS, tasks=self.cores) as exchange,
            concurrent.futures.ThreadPoolExecutor(self.cores) as pool,
        ):

            def write(task):
                with exchange.task(task) as rows:
                    for batch in self.data[task :: self.cores]:
                        rows.write(batch, **by)

            list(pool.map(write, range(self.cores)))
            return list(pool.map(lambda partition: read(exchange.partition(partition)), range(PARTITIONS)))

    def partition(self):
        import pyarrow as pa

        return self.exchange(lambda rows: [pa.table(table) for table in rows], hash='key')

    def sort(self):
        import numpy as np
        import pyarrow as pa

        sample = np.sort(np.concatenate([batch.column(0).to_numpy()[:256] for batch in self.data]))
        places = np.linspace(0, len(sample), PARTITIONS + 1)[1:-1].astype(int)
        bounds = pa.table({'key': sample[places]})

        def sorted_rows(rows):
            return [pa.concat_tables([pa.table(table) for table in rows]).sort_by('key')]

        return self.exchange(sorted_rows, range=bounds)


class DataFusion:
    """A session. The data are in as many parts as there are cores."""

    def __init__(self, data, cores):
        self.parts, self.cores = [data[core::cores] for core in range(cores)], cores

    def table(self, **options):
        import datafusion

        config = datafusion.SessionConfig().with_target_partitions(options.pop('target', self.cores))
        for name, value in options.items():
            config = config.set(f'datafusion.optimizer.{name}', value)
        context = datafusion.SessionContext(config)
        context.register_record_batches('data', self.parts)
        return context

    def partition(self):
        import pyarrow as pa

        limits = {'hash_join_single_partition_threshold': '0', 'hash_join_single_partition_threshold_rows': '0'}
        context = self.table(target=PARTITIONS, **limits)
        context.register_record_batches('one', [[pa.record_batch([pa.array([2**63 - 1])], names=['key'])]])
        rows = context.sql('SELECT data.* FROM data LEFT ANTI JOIN one ON data.key = one.key')
        assert 'Hash([key@0], 64)' in str(rows.execution_plan()), 'the plan has no hash partitions'
        return [[pa.Table.from_batches(part)] for part in rows.collect_partitioned() if part]

    def sort(self):
        import pyarrow as pa

        return [[pa.Table.from_batches(self.table().sql('SELECT * FROM data ORDER BY key').collect())]]


def check(what, parts, data):
    """Fails where rows are missing, or a partition is not in order."""
    import numpy as np
    import pyarrow as pa

    tables = [table for part in parts for table in part]
    rows = sum(table.num_rows for table in tables)
    assert rows == sum(batch.num_rows for batch in data), f'{rows} rows are not those of the data'
    keys = [column.to_numpy() for table in tables for column in [table.column('key')]]
    wanted = np.concatenate([batch.column(0).to_numpy() for batch in data])
    assert np.concatenate(keys).sum() == wanted.sum(), 'the keys are not those of the data'
    if what == 'sort':
        together = pa.concat_tables(tables).column('key').to_numpy()
        assert (np.diff(together) >= 0).all(), 'the rows are not in order'


def worker(who, what, cores, mib):
    """Measures once, in this process. Prints the seconds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    data = batches(mib)
    measured = {'transfer': Transfer, 'DataFusion': DataFusion}[who](data, cores)
    getattr(measured, what)()
    # The memory of the first exchange is free a moment later.
    time.sleep(2)
    began = time.perf_counter()
    parts = getattr(measured, what)()
    seconds = time.perf_counter() - began
    check(what, parts, data)
    print(json.dumps(seconds))


def prepare():
    """The Python that has both. Returns its path."""
    import install

    wheels = sorted((install.TARGET / 'wheels').glob('transferd-*-abi3-*.whl'), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        raise install.MissingError(f'there is no wheel in {install.TARGET / "wheels"}: `make wheel` builds it')
    for peer in ('common', 'Arrow Flight', 'DataFusion'):
        install.packages(peer)
    install.run([install.VENV / 'bin/pip', 'install', '--quiet', '--disable-pip-version-check', '--force-reinstall', '--no-deps', wheels[-1]])
    return install.VENV / 'bin/python'


def rate(mib, seconds):
    """Gigabytes per second: the median, and the least and the most."""
    rates = sorted(mib * 2**20 / 1e9 / second for second in seconds)
    return statistics.median(rates), f'{statistics.median(rates):.2f} ({rates[0]:.2f} to {rates[-1]:.2f})'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--mib', type=int, default=512, help='how much data (%(default)s MiB)')
    parser.add_argument('--rounds', type=int, default=5, help='how many times each is measured (%(default)s)')
    parser.add_argument('--worker', nargs=3, metavar=('WHO', 'WHAT', 'CORES'), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        who, what, cores = asked.worker
        return worker(who, what, int(cores), asked.mib)
    python = prepare()
    asks = [(what, cores) for what in WHATS for cores in (1, 2)]
    seen = {(who, *ask): [] for who in WHO for ask in asks}
    for _ in range(asked.rounds):
        for ask in asks:
            for who in WHO:
                words = [python, pathlib.Path(__file__).resolve(), '--mib', str(asked.mib), '--worker', who, ask[0], str(ask[1])]
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
                seen[who, *ask].append(json.loads(done.stdout.splitlines()[-1]))
    print(f'{asked.mib} MiB, medians of {asked.rounds} rounds (least to most), GB/s\n')
    print('| what | cores | transfer | DataFusion | compared |\n|---|---|---|---|---|')
    for what, cores in asks:
        (ours, shown), (theirs, shown_theirs) = (rate(asked.mib, seen[who, what, cores]) for who in WHO)
        print(f'| {what} | {cores} | {shown} | {shown_theirs} | {ours / theirs:.2f} × |')
    return None


if __name__ == '__main__':
    sys.exit(main())
