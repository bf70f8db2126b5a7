#!/usr/bin/env python3
"""Trains a network on handwritten digits: a parameter server and its workers, each a process, through one sidecar.

In each step the server publishes the weights, by two buffers that take turns; each worker fetches them, computes the gradient of its share of the
rows, and publishes that; the server adds the gradients in the workers' order. No tensor is copied. The check: the weights equal, bit for bit, those
that one process computes, and most of the held-out digits are read right.

    examples/python/digits.py [--socket PATH] [--workers N] [--steps N]

Without --socket a sidecar runs inside of the server's process.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
from pathlib import Path

import numpy as np
import transferd as td

DATA = Path(__file__).resolve().parents[1] / "digits/data/digits.csv.gz"
PIXELS, HIDDEN, DIGITS = 64, 32, 10
TRAINED_ROWS = 1500
RATE = np.float32(0.5)

Weights = list[np.ndarray]
SHAPES = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,)]
LENGTH = sum(int(np.prod(shape)) for shape in SHAPES)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 1, and labels."""
    with gzip.open(DATA, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :PIXELS] / np.float32(16), table[:, PIXELS].astype(int)


def parts(flat: np.ndarray) -> Weights:
    """The weights as views of one flat array."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [piece.reshape(shape) for piece, shape in zip(np.split(flat, ends[:-1]), SHAPES)]


def first_weights() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, LENGTH).astype(np.float32)


def predict(flat: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w1, b1, w2, b2 = parts(flat)
    hidden = np.maximum(pixels @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def gradient(flat: np.ndarray, pixels: np.ndarray, labels: np.ndarray, into: np.ndarray) -> None:
    """Writes the gradient of the mean loss over these rows."""
    hidden, error = predict(flat, pixels)
    error[np.arange(len(labels)), labels] -= 1
    error /= np.float32(len(labels))
    back = (error @ parts(flat)[2].T) * (hidden > 0)
    w1, b1, w2, b2 = parts(into)
    w1[:], b1[:], w2[:], b2[:] = pixels.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)


def shares(workers: int) -> list[slice]:
    edges = np.linspace(0, TRAINED_ROWS, workers + 1).astype(int)
    return [slice(a, b) for a, b in zip(edges, edges[1:])]


def worker(path: str, number: int, workers: int, steps: int) -> None:
    pixels, labels = rows()
    mine = shares(workers)[number]
    with td.connect(path, name=f"worker-{number}", arena="1MiB") as c:
        for step in range(1, steps + 1):
            weights = c.fetch("weights", at_least=step)
            with c.produce(f"gradient/{number}", (LENGTH,), "float32", version=step, room=30) as buffer:
                gradient(weights.numpy(), pixels[mine], labels[mine], buffer.numpy())
            assert weights.report.copied == 0
        # What this worker has published ends with it: it stays until the server has the last gradient.
        c.barrier("done", workers + 1).wait()


def serve(c: td.Client, workers: int, steps: int) -> np.ndarray:
    buffers = c.two_buffers("weights", (LENGTH,), "float32")
    weights = first_weights()
    for step in range(1, steps + 1):
        buffer = buffers.turn()
        buffer.numpy()[:] = weights
        buffers.push(buffer, step)
        for number in range(workers):
            weights = weights - RATE / np.float32(workers) * c.fetch(f"gradient/{number}", at_least=step).numpy()
    c.barrier("done", workers + 1).wait()
    return weights


def alone(workers: int, steps: int) -> np.ndarray:
    """The same, in one process and without a sidecar."""
    pixels, labels = rows()
    weights, into = first_weights(), np.empty(LENGTH, np.float32)
    for _ in range(steps):
        published = weights
        for share in shares(workers):
            gradient(published, pixels[share], labels[share], into)
            weights = weights - RATE / np.float32(workers) * into
    return weights


def main() -> None:
    arguments = argparse.ArgumentParser(description="Trains a network on handwritten digits.")
    arguments.add_argument("--socket", help="the sidecar's; without it one runs in this process")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    given = arguments.parse_args()

    with td.connect(given.socket) if given.socket else td.embedded() as c:
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=worker, args=(c.path, number, given.workers, given.steps))
            for number in range(given.workers)
        ]
        for process in processes:
            process.start()
        weights = serve(c, given.workers, given.steps)
        for process in processes:
            process.join()
            assert process.exitcode == 0, "a worker failed"

    pixels, labels = rows()
    held_out = slice(TRAINED_ROWS, None)
    right = float((predict(weights, pixels[held_out])[1].argmax(axis=1) == labels[held_out]).mean())
    equal = weights.tobytes() == alone(given.workers, given.steps).tobytes()
    print(f"{right:.1%} of {len(labels[held_out])} held-out digits are read right; equal to one process: {equal}")
    assert equal and (right > 0.8 or given.steps < 200)


if __name__ == "__main__":
    main()
