"""Invalid options of a server are rejected when it is created, by name."""

import pytest

from toolpost import Server


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "secret"}, "keys must be a KeyRing, not str"),
        ({"observers": [3]}, "observers contains 3; expected a function"),
        ({"extensions": ["a"]}, "extensions contains 'a'; expected an Extension"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_by_name(options, message):
    with pytest.raises(TypeError, match=message):
        Server("shop", **options)
