"""The names of the kit: each is there, loaded on first use, known to type checkers; examples run."""

from toolpost import testing


def test_the_lazy_table_has_every_name():
    names = [name for names in testing._HOMES.values() for name in names]
    assert sorted(names) == sorted(testing.__all__) == dir(testing)
