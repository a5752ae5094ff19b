"""The choice between numerical methods and contraction orders: the fastest by work counted and seconds measured."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from molflt.attention.far import costs as costs_module
from molflt.attention.far.choice import ORDERS, AutomaticMethod, choose_contraction, work_of
from molflt.attention.far.costs import DIRECTIONS, SHIPPED, THREADS, VARIABLE, LayerSizes, Work, costs
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.mesh import MeshMethod
from molflt.attention.far.quadrature import QuadratureMethod
from molflt.errors import InputError
from tests.attention.far.oracles import small_rpe
from tests.attention.layers import Layer, water
from tests.attention.structures import STRUCTURES, geometry_of
from tests.attention.test_layer import METHODS

SIZES = LayerSizes(n_applications=6, n_heads=4, dim=32, far_dim=8, rank=1, n_layers=3)
UNITS = [field.name for field in dataclasses.fields(Work)]


def random_rates(seed: int) -> Work:
    """Seconds over five orders of magnitude."""
    return Work(
        **dict(zip(UNITS, (10 ** np.random.default_rng(seed).uniform(-10, -5, len(UNITS))).tolist(), strict=True))
    )


def large_slab():
    """Of more atoms than the mesh needs to be offered."""
    return STRUCTURES["slab_open"]().repeat((4, 4, 1))


@pytest.mark.parametrize("name", ["molecule", "large", "slab_open", "triclinic", "large_slab"])
def test_the_choice_is_the_fastest_way_there_is(name):
    atoms = {"large": lambda: water(70), "large_slab": large_slab}.get(name, STRUCTURES.get(name))()
    geometry, basis, method = geometry_of([atoms]), small_rpe()(), AutomaticMethod(1e-4)
    works = {
        (candidate.name, order): work_of(candidate, order, SIZES, geometry, 0, 50, basis)
        for candidate in method.candidates(geometry, 0)
        for order in ORDERS
    }
    chosen = set()
    for seed in range(12):
        rates = random_rates(seed)
        seconds = {
            way: sum(getattr(work, unit) * getattr(rates, unit) for unit in UNITS)
            for way, work in works.items()
            if work is not None
        }
        found = choose_contraction(method, "auto", SIZES, geometry, 0, 50, basis, rates)
        assert (found.method.name, found.order) == min(seconds, key=lambda way: seconds[way])
        assert found.seconds == pytest.approx(min(seconds.values()))
        chosen.add(str(found))
        for order in ORDERS:
            of_order = [value for way, value in seconds.items() if way[1] == order]
            if of_order:
                forced = choose_contraction(method, order, SIZES, geometry, 0, 50, basis, rates)
                assert (forced.order, forced.seconds) == (order, pytest.approx(min(of_order)))
    # Power: the costs decide, wherever there is more than one way.
    assert (len(chosen) > 1) == (sum(work is not None for work in works.values()) > 1)


def test_batch_mates_do_not_enter_the_choice():
    layer = Layer()
    atoms = [STRUCTURES[name]() for name in ("molecule", "slab", "triclinic", "atom")] + [water(70), large_slab()]
    together = layer.context(layer.geometry(atoms)).contractions
    for one, of_batch in zip(atoms, together, strict=True):
        (alone,) = layer.context(layer.geometry([one])).contractions
        assert str(alone) == str(of_batch)
        assert alone.seconds == pytest.approx(of_batch.seconds, rel=1e-9)
    # Power: their neighbours are not all contracted alike.
    assert len({str(contraction) for contraction in together}) > 1


def test_threads_and_derivatives_have_costs_of_their_own(monkeypatch, tmp_path):
    """With pairs dear in training and edges dear without it, the order changes; so it does with threads."""
    table = json.loads(SHIPPED.read_text(encoding="utf-8"))
    for threads in THREADS:
        for direction in DIRECTIONS:
            dear = "pair_layers" if (direction == "train") == (threads == "one thread") else "edge_applications"
            table["seconds"][threads][direction] = {**dict.fromkeys(UNITS, 1e-9), dear: 1.0}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(path))
    layer = Layer(frequencies="lattice")
    geometry = layer.geometry([STRUCTURES["slab"]()])
    found = {}
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for training in (False, True):
                with torch.set_grad_enabled(training):
                    found[threads, training] = layer.context(geometry).contractions[0].order
    finally:
        torch.set_num_threads(before)
    assert found == {(1, False): "quadratic", (1, True): "linear", (2, False): "linear", (2, True): "quadratic"}
    # A model without anything to learn is not trained, unless forces are wanted.
    for module in (layer.shared, layer.layer, layer.radial):
        module.requires_grad_(False)
    torch.set_num_threads(1)
    try:
        assert layer.context(geometry).contractions[0].order == "quadratic"
        geometry.positions.requires_grad_()
        assert layer.context(geometry).contractions[0].order == "linear"
    finally:
        torch.set_num_threads(before)


def test_estimates_grow_with_the_structure():
    """By the shipped costs, and as the number of operations does: pairs by four, features and mesh by less."""
    assert costs().of(1, backward=True).seconds(Work()) == 0.0
    basis = small_rpe()()
    for threads, backward in ((1, False), (1, True), (2, False), (8, True)):
        rates = costs().of(threads, backward)
        for method, order, made in (
            (ExactMethod(), "quadratic", water),
            (QuadratureMethod(1e-4), "quadratic", water),
            (MeshMethod(1e-3), "linear", water),
            (LatticeMethod(1e-4), "quadratic", lambda n: STRUCTURES["triclinic"]().repeat((n // 20, 1, 1))),
            (LatticeMethod(1e-4), "linear", lambda n: STRUCTURES["triclinic"]().repeat((n // 20, 1, 1))),
        ):
            seconds = []
            for n in (20, 40, 80):
                geometry = geometry_of([made(n)])
                work = work_of(method, order, SIZES, geometry, 0, 30 * n, basis)
                seconds.append(work.seconds(rates))
            assert 0 < seconds[0] < seconds[1] < seconds[2]
            assert seconds[2] < 20 * seconds[1]


@pytest.mark.parametrize("name", ["molecule", "slab"])
@pytest.mark.parametrize("method", ["lattice", "lattice, waves"])
def test_the_counted_work_is_that_of_the_features(method, name):
    """Two products with the features in each application: N · features · channels each."""
    keys, names = METHODS[method]
    shared = Layer(**keys).shared
    geometry, basis = geometry_of([STRUCTURES[name]()]), shared.rpe()
    operator = shared.method.operator(geometry, 0, basis)
    work = shared.method.operator_work(geometry, 0, basis, SIZES)
    if name not in names:
        assert operator is None
        assert work is None
        return
    # The lattice expects a number of vectors from the volume.
    rel = 0.15
    assert work.feature_products == pytest.approx(2 * 6 * operator.features.numel() * 8, rel=rel)
    assert work.wave_phases == pytest.approx(operator.features.numel(), rel=rel)
    assert work.feature_weights == pytest.approx(6 * operator.coefficients.numel() * 4, rel=rel)


@pytest.mark.parametrize("name", ["molecule", "slab_open", "triclinic"])
def test_the_counted_work_is_that_of_pairs_and_of_the_mesh(name):
    geometry, basis, method = geometry_of([STRUCTURES[name]()]), small_rpe()(), MeshMethod(1e-3)
    operator, n = method.operator(geometry, 0, basis), geometry.n_atoms
    work = method.operator_work(geometry, 0, basis, SIZES)
    assert work.mesh_entries == operator.gather.n_entries
    assert work.grid_spread == 2 * 6 * 8 * operator.gather.n_entries
    assert work.mesh_bands == len(operator.bands)
    assert work.mesh_spectra == sum(s.numel() for band in operator.bands for s in band.spectra.values())
    waves = [[len(matrix) for matrix in band.matrices] for band in operator.bands]
    planes = operator.n_planes
    # Planes are counted before it is known which are shared: never fewer, and few more.
    assert 1 <= work.grid_points / (6 * 8 * np.prod(planes)) < 1.5
    assert 1 <= work.grid_first / (2 * 6 * 8 * np.prod(planes) * sum(u for u, _, _ in waves)) < 1.5
    assert 1 <= work.grid_others / (12 * 8 * sum(u * planes[2] * v * (planes[1] + w) for u, v, w in waves)) < 1.5
    on_pairs = ExactMethod().pair_work(geometry, 0, basis)
    assert on_pairs.pair_members + on_pairs.image_members >= n * n * len(basis)
    assert (on_pairs.image_members == 0) == (name == "molecule")


def test_the_mesh_is_offered_to_many_atoms_and_the_lattice_to_cells():
    offered = {
        n: [method.name for method in AutomaticMethod(1e-4).candidates(geometry_of([water(n)]), 0)] for n in (5, 100)
    }
    assert offered == {5: ["exact"], 100: ["exact", "mesh"]}
    periodic = AutomaticMethod(1e-4).candidates(geometry_of([STRUCTURES["triclinic"]()]), 0)
    assert [method.name for method in periodic] == ["exact", "lattice"]


def test_where_no_mesh_fits_another_way_is_taken(monkeypatch):
    geometry, basis = geometry_of([water(70)]), small_rpe()()
    monkeypatch.setattr("molflt.attention.far.mesh._MOST_POINTS", 1000)
    found = choose_contraction(AutomaticMethod(1e-4), "auto", SIZES, geometry, 0, 50, basis, random_rates(0))
    assert str(found).startswith("exact")
    with pytest.raises(InputError, match="needs a mesh of more than 1,000 points; use frequencies=auto"):
        choose_contraction(MeshMethod(1e-4), "auto", SIZES, geometry, 0, 50, basis, random_rates(0))


def damaged(change) -> str:
    table = json.loads(SHIPPED.read_text(encoding="utf-8"))
    change(table["seconds"]["one thread"]["train"])
    return json.dumps(table)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "Expecting"),
        ("[]", "list"),
        ("{}", "'seconds' is missing"),
        ('{"seconds": {"one thread": {}}}', "'forward' is missing"),
        (damaged(lambda rates: rates.pop("pair_members")), "pair_members is missing"),
        (damaged(lambda rates: rates.update(joules=1.0)), "joules is not known"),
        (damaged(lambda rates: rates.update(mesh_calls=-1e-9)), "mesh_calls = -1e-09 is no number of seconds"),
        (damaged(lambda rates: rates.update(mesh_calls=float("nan"))), "mesh_calls = nan is no number of seconds"),
        (damaged(lambda rates: rates.update(mesh_calls=3600)), "mesh_calls = 3600 is no number of seconds"),
        (damaged(lambda rates: rates.update(mesh_calls="1")), "mesh_calls = '1' is no number of seconds"),
        (damaged(lambda rates: rates.update(dict.fromkeys(rates, 0.0))), "all numbers are zero"),
    ],
)
def test_a_file_of_costs_that_cannot_be_right_is_refused(text, reason, monkeypatch, tmp_path):
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(path))
    layer = Layer()
    with pytest.raises(InputError) as raised:
        layer.context(layer.geometry([STRUCTURES["molecule"]()]))
    message = str(raised.value)
    assert "\n" not in message
    assert reason in message
    assert message.startswith(f"{path}: no costs of the far field")
    assert f"method_choice --fit {path}, or unset {VARIABLE}" in message


def test_the_file_that_the_variable_names_is_used(monkeypatch, tmp_path):
    """Power of the refusals: an undamaged copy passes, and its numbers are the ones that are read."""
    path = tmp_path / "mine.json"
    path.write_text(damaged(lambda rates: rates.update(pair_members=0.25)), encoding="utf-8")
    assert costs().of(1, backward=True).pair_members < 0.25
    monkeypatch.setenv(VARIABLE, str(path))
    assert costs().of(1, backward=True).pair_members == 0.25
    assert costs_module.read_costs(str(SHIPPED)).table() == json.loads(SHIPPED.read_text(encoding="utf-8"))["seconds"]
