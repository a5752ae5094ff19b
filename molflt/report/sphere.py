"""Triangulated spheres."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4)
def unit_sphere(level: int) -> tuple[np.ndarray, np.ndarray]:
    """An icosahedron, each triangle split in four ``level`` times, pushed out to radius one.

    Returns:
        Vertices (10·4^level + 2, 3) and, per triangle, the indices of its vertices (20·4^level, 3), anticlockwise
        as seen from outside: shading follows from that.
    """
    golden = (1 + 5**0.5) / 2
    edge = [(0, a, b) for a in (-1, 1) for b in (-golden, golden)]
    vertices = [np.roll(corner, shift) for shift in range(3) for corner in edge]
    points = np.array(vertices, dtype=np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    faces = _nearest_triples(points)
    for _ in range(level):
        points, faces = _split(points, faces)
    a, b, c = (points[faces[:, k]] for k in range(3))
    inward = (np.cross(b - a, c - a) * a).sum(axis=1) < 0
    faces[inward] = faces[inward][:, ::-1]
    return points, faces


def _nearest_triples(points: np.ndarray) -> np.ndarray:
    """The twenty triples of an icosahedron's corners that are neighbours of each other."""
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    touching = np.isclose(distance, distance[distance > 0].min())
    n = len(points)
    triples = [
        (i, j, k)
        for i in range(n)
        for j in range(i + 1, n)
        for k in range(j + 1, n)
        if touching[i, j] and touching[j, k] and touching[i, k]
    ]
    return np.array(triples)


def _split(points: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [0, 2]]]), axis=1)
    edges, place = np.unique(pairs, axis=0, return_inverse=True)
    middle = points[edges].mean(axis=1)
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    ab, bc, ac = (place.reshape(3, -1) + len(points)).astype(faces.dtype)
    a, b, c = faces.T
    corners = [(a, ab, ac), (b, ab, bc), (c, ac, bc), (ab, bc, ac)]
    return np.concatenate([points, middle]), np.concatenate([np.stack(corner, axis=1) for corner in corners])
