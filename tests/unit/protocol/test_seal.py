import base64
import doctest
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolpost.errors import InvalidSeal, MCPError
from toolpost.protocol import seal
from toolpost.protocol.seal import MAX_PAYLOAD, MAX_SEALED, MIN_KEY, KeyRing

KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))
# Found by search: different keys whose public ids are the same four bytes.
TWINS = (47870).to_bytes(32, "big"), (118953).to_bytes(32, "big")

PLAIN = KeyRing([KEY], encrypt=False)
SECRET = KeyRing([KEY], encrypt=True)
both_forms = pytest.mark.parametrize("ring", [PLAIN, SECRET], ids=["hmac", "aes"])
rings = st.sampled_from([PLAIN, SECRET])
# Lone surrogates included: a binding may be made of what a stranger sent.
texts = st.text(st.characters(exclude_categories=[]), max_size=20)
bindings = st.lists(texts | st.binary(max_size=20), max_size=4)
times = st.integers(0, 2**64 - 2)


def raw_of(sealed):
    return base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))


def text_of(raw):
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def refusal(ring, sealed, audience="cursor", binding=(), now=0):
    with pytest.raises(InvalidSeal) as caught:
        ring.open(sealed, audience=audience, binding=binding, now=now)
    assert str(caught.value) == "the sealed value is not valid here"
    return caught.value.reason


def without_cryptography(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)


# --------------------------------------------------------------------- what is promised


@given(rings, st.binary(max_size=300), texts, bindings, st.none() | times)
def test_sealed_values_can_be_opened(ring, payload, audience, binding, expires):
    sealed = ring.seal(payload, audience=audience, binding=binding, expires=expires)
    now = 2**70 if expires is None else expires - 1
    assert set(sealed) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert ring.open(sealed, audience=audience, binding=binding, now=now) == payload


@both_forms
def test_the_binding_may_be_any_sequence(ring):
    sealed = ring.seal(b"x", audience="cursor", binding=["ann", b"d"])
    assert ring.open(sealed, audience="cursor", binding=("ann", b"d"), now=0) == b"x"


def test_only_the_encrypted_form_hides_the_payload():
    assert b"account 17" in raw_of(PLAIN.seal(b"account 17", audience="cursor"))
    assert b"account 17" not in raw_of(SECRET.seal(b"account 17", audience="cursor"))


@both_forms
def test_audience_and_binding_are_not_in_the_string(ring):
    raw = raw_of(ring.seal(b"", audience="the audience", binding=["ann@example.org", b"digest"]))
    assert not any(part in raw for part in (b"the audience", b"ann@example.org", b"digest"))


def test_the_plain_form_is_the_same_string_each_time_and_the_encrypted_one_never():
    assert PLAIN.seal(b"x", audience="cursor") == PLAIN.seal(b"x", audience="cursor")
    assert len({SECRET.seal(b"x", audience="cursor") for _ in range(100)}) == 100


@pytest.mark.requirement("MRTR-11")
@both_forms
def test_a_string_expires_in_the_second_it_names(ring):
    sealed = ring.seal(b"x", audience="cursor", expires=1000)
    assert ring.open(sealed, audience="cursor", now=999) == b"x"
    assert refusal(ring, sealed, now=1000) == "it expired at 1000 (now: 1000)"
    assert "expired" in refusal(ring, sealed, now=1001)


@both_forms
def test_the_expiry_cannot_be_changed(ring):
    raw = raw_of(ring.seal(b"x", audience="cursor", expires=1000))
    for later in (1001, 2**64 - 1):
        assert "forged" in refusal(ring, text_of(raw[:5] + later.to_bytes(8, "big") + raw[13:]))


@pytest.mark.requirement("MRTR-11")
@both_forms
@pytest.mark.parametrize(
    ("sealed_for", "shown_for"),
    [
        (("cursor", []), ("request-state", [])),
        (("cursor", ["a"]), ("cursor", [])),
        (("cursor", []), ("cursor", ["a"])),
        (("cursor", []), ("cursor", [""])),
        (("cursor", ["a", "bc"]), ("cursor", ["ab", "c"])),
        (("cursor", ["a", "bc"]), ("cursor", ["abc"])),
        (("cursor", ["a", "b"]), ("cursor", ["b", "a"])),
        (("cursor", ["a"]), ("cursor", [b"a"])),
        (("cursor", [""]), ("cursor", [b""])),
        (("cursor", ["a"]), ("cursora", [])),
        (("cursor", ["\ud83d\ude00"]), ("cursor", ["\U0001f600"])),
        (("cursor", ["\ud800"]), ("cursor", ["\ud801"])),
        (("cursor", ["\ud800"]), ("cursor", ["?"])),
        (("cursor", ["é"]), ("cursor", ["e\u0301"])),
    ],
)
def test_another_audience_or_binding_looks_like_a_forgery(ring, sealed_for, shown_for):
    audience, binding = sealed_for
    sealed = ring.seal(b"x", audience=audience, binding=binding)
    forged = text_of(raw_of(sealed)[:-1] + bytes([raw_of(sealed)[-1] ^ 1]))
    assert refusal(ring, sealed, *shown_for) == refusal(ring, forged, *sealed_for)


@given(rings, st.tuples(texts, bindings), st.tuples(texts, bindings))
@example(PLAIN, ("", ["a"]), ("", [b"a"]))
def test_a_string_opens_for_its_own_audience_and_binding_only(ring, mine, yours):
    sealed = ring.seal(b"x", audience=mine[0], binding=mine[1])
    if mine == yours:
        assert ring.open(sealed, audience=yours[0], binding=yours[1], now=0) == b"x"
    else:
        assert "forged" in refusal(ring, sealed, *yours)


@pytest.mark.parametrize(("audience", "binding"), [("cursor", ["a"]), ("cursor", []), ("curso", [])])
def test_binding_and_payload_cannot_be_confused(audience, binding):
    raw = raw_of(PLAIN.seal(b"", audience="cursor", binding=["ab"]))
    for payload in (b"b", b"ab", b"r", b"rab"):
        assert "forged" in refusal(PLAIN, text_of(raw[:13] + payload + raw[13:]), audience, binding)


# --------------------------------------------------------------------- strings from strangers


@pytest.mark.requirement("MRTR-9", "MRTR-10")
@both_forms
def test_every_flipped_bit_is_refused(ring):
    sealed = ring.seal(b"some state", audience="cursor", expires=1000)
    raw = raw_of(sealed)
    for at in range(len(raw)):
        for bit in range(8):
            refusal(ring, text_of(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]))
    for at, char in enumerate(sealed):
        for bit in range(8):
            refusal(ring, sealed[:at] + chr(ord(char) ^ 1 << bit) + sealed[at + 1 :])


@pytest.mark.requirement("MRTR-9", "MRTR-10")
@both_forms
@pytest.mark.parametrize("payload", [b"", b"some state"])
def test_every_truncation_and_every_extension_is_refused(ring, payload):
    sealed = ring.seal(payload, audience="cursor")
    raw = raw_of(sealed)
    for at in range(len(raw)):
        refusal(ring, text_of(raw[:at]))
        refusal(ring, text_of(raw[at + 1 :]))
        refusal(ring, text_of(raw[:at] + raw[at + 1 :]))
    for at in range(len(sealed)):
        refusal(ring, sealed[:at])
        refusal(ring, sealed[at + 1 :])
    for extra in (b"\0", b"\xff", raw):
        refusal(ring, text_of(raw + extra))
        refusal(ring, text_of(extra + raw))


@both_forms
@pytest.mark.parametrize("length", range(3))
def test_no_other_last_character_opens(ring, length):
    sealed = ring.seal(b"x" * length, audience="cursor")
    last = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/= \n") - {sealed[-1]}
    reasons = [refusal(ring, sealed[:-1] + char) for char in last]
    spare_bits = -len(sealed) % 4 * 2
    assert reasons.count("its base64url is not canonical") >= 2**spare_bits - 1


@both_forms
@pytest.mark.parametrize("spoil", ["{}=", "{}==", "{}\n", " {}", "\n{}", "{}A", "{}\0", "{}é", "{}\ud800"])
def test_nothing_may_stand_around_a_string(ring, spoil):
    for length in range(3):
        refusal(ring, spoil.format(ring.seal(b"x" * length, audience="cursor")))


def test_the_ordinary_base64_alphabet_is_refused():
    sealed = next(
        text for n in range(100) if "-" in (text := PLAIN.seal(bytes([n]), audience="cursor")) and "_" in text
    )
    assert refusal(PLAIN, sealed.replace("-", "+")) == "it is not base64url without padding"
    assert refusal(PLAIN, sealed.replace("_", "/")) == "it is not base64url without padding"


@pytest.mark.requirement("MRTR-8")
@given(
    rings, st.text(st.characters(exclude_categories=[]), max_size=200) | st.binary(max_size=200).map(text_of)
)
@example(PLAIN, "")
@example(PLAIN, "\ud800")
@example(PLAIN, "\N{FULLWIDTH LATIN CAPITAL LETTER A}" * 60)
@example(PLAIN, "A" * MAX_SEALED)
def test_any_text_is_refused_cleanly(ring, text):
    refusal(ring, text)


@pytest.mark.requirement("MRTR-8")
@given(rings, st.sampled_from([1, 2]), st.binary(max_size=100))
def test_any_body_under_a_good_header_is_refused_cleanly(ring, form, body):
    header = raw_of(ring.seal(b"", audience="cursor"))[1:13]
    assert "forged" in refusal(ring, text_of(bytes([form]) + header + body))


@pytest.mark.parametrize("form", [0, 3, 255])
def test_an_unknown_form_is_refused(form):
    raw = raw_of(PLAIN.seal(b"x", audience="cursor"))
    assert refusal(PLAIN, text_of(bytes([form]) + raw[1:])) == f"its form {form} is unknown"


@both_forms
def test_a_string_cannot_change_its_form(ring):
    raw = raw_of(ring.seal(b"x" * 40, audience="cursor"))
    assert "forged" in refusal(ring, text_of(bytes([raw[0] ^ 3]) + raw[1:]))


def test_a_header_alone_is_too_short():
    assert refusal(PLAIN, text_of(b"\x01" * 12)) == "it is too short"


# --------------------------------------------------------------------- bounds


@both_forms
def test_the_largest_payload_makes_a_string_that_opens(ring):
    sealed = ring.seal(b"x" * MAX_PAYLOAD, audience="cursor")
    assert MAX_SEALED - 8 < len(sealed) <= MAX_SEALED
    assert ring.open(sealed, audience="cursor", now=0) == b"x" * MAX_PAYLOAD
    with pytest.raises(ValueError, match=rf"has {MAX_PAYLOAD + 1} bytes \(limit: {MAX_PAYLOAD}\)"):
        ring.seal(b"x" * (MAX_PAYLOAD + 1), audience="cursor")


def test_a_string_that_is_too_long_is_refused_before_it_is_read():
    assert refusal(PLAIN, "é" * (MAX_SEALED + 1)) == "it has 65537 characters (limit: 65536)"
    assert refusal(PLAIN, "é" * MAX_SEALED) == "it is not base64url without padding"


@pytest.mark.parametrize("expires", [-1, 2**64 - 1, 2**64, 1.5, 1e9, True])
def test_an_expiry_that_is_not_a_time_is_rejected(expires):
    with pytest.raises(ValueError, match="Unix time in whole seconds"):
        PLAIN.seal(b"x", audience="cursor", expires=expires)


@pytest.mark.parametrize("binding", ["ann", b"ann"])
def test_a_lone_string_is_not_a_binding(binding):
    with pytest.raises(TypeError, match=r"binding=\[principal\]"):
        PLAIN.seal(b"x", audience="cursor", binding=binding)


# --------------------------------------------------------------------- keys


@pytest.mark.parametrize("encrypt", [False, True])
def test_after_a_rotation_old_strings_open_and_new_ones_use_the_new_key(encrypt):
    old = KeyRing([KEY], encrypt=encrypt)
    both = KeyRing([OTHER_KEY, KEY], encrypt=encrypt)
    new = KeyRing([OTHER_KEY], encrypt=encrypt)
    before, after = old.seal(b"1", audience="cursor"), both.seal(b"2", audience="cursor")
    assert both.open(before, audience="cursor", now=0) == b"1"
    assert both.open(after, audience="cursor", now=0) == b"2"
    assert new.open(after, audience="cursor", now=0) == b"2"
    assert "no key of the ring has its key id 85bc4457" in refusal(new, before)
    assert "no key" in refusal(old, after)


@pytest.mark.parametrize("encrypt", [False, True])
def test_keys_that_share_an_id_are_both_tried(encrypt):
    first, second = (KeyRing([key], encrypt=encrypt) for key in TWINS)
    sealed = second.seal(b"x", audience="cursor")
    assert repr(first) == repr(second)
    assert "forged" in refusal(first, sealed)
    assert KeyRing(TWINS).open(sealed, audience="cursor", now=0) == b"x"


def test_any_ring_opens_both_forms():
    for ring in (PLAIN, SECRET):
        for other in (PLAIN, SECRET):
            assert other.open(ring.seal(b"x", audience="cursor"), audience="cursor", now=0) == b"x"


def test_a_text_key_is_its_utf8_bytes():
    text = "schlüssel, zweiunddreißig bytes!"
    sealed = KeyRing([text]).seal(b"x", audience="cursor")
    assert KeyRing([text.encode()]).open(sealed, audience="cursor", now=0) == b"x"


def test_random_rings_differ():
    mine, yours = KeyRing.random(), KeyRing.random(encrypt=False)
    sealed = mine.seal(b"x", audience="cursor")
    assert mine.open(sealed, audience="cursor", now=0) == b"x"
    refusal(yours, sealed)
    assert (mine.encrypts, yours.encrypts) == (True, False)


@pytest.mark.parametrize("short", [b"", b"k" * (MIN_KEY - 1), "k" * (MIN_KEY - 1), "ü" * 15])
def test_a_short_key_is_refused_with_a_hint_that_does_not_show_it(short):
    with pytest.raises(ValueError, match=r"key 2 of the ring has \d+ bytes; at least 32 .*secrets") as caught:
        KeyRing([KEY, short])
    assert "kk" not in str(caught.value)


def test_a_ring_without_keys_is_refused():
    with pytest.raises(ValueError, match=r"at least one key .*secrets"):
        KeyRing([])


@pytest.mark.parametrize("lone", ["k" * 40, b"k" * 40])
def test_a_lone_key_is_not_a_ring(lone):
    with pytest.raises(TypeError, match=r"KeyRing\(\[key\]\)"):
        KeyRing(lone)


def test_the_repr_shows_public_ids_only():
    ring = KeyRing(["a secret that must not be shown!", KEY], encrypt=False)
    assert repr(ring) == "KeyRing(ids=['8f55438f', '85bc4457'], encrypts=False)"


# --------------------------------------------------------------------- without cryptography


def test_without_cryptography_a_ring_authenticates_only(monkeypatch):
    assert KeyRing([KEY]).encrypts
    without_cryptography(monkeypatch)
    for ring in (KeyRing([KEY]), KeyRing([KEY], encrypt=False)):
        assert not ring.encrypts
        assert ring.seal(b"x", audience="cursor") == PLAIN.seal(b"x", audience="cursor")


def test_without_cryptography_encryption_cannot_be_demanded(monkeypatch):
    without_cryptography(monkeypatch)
    with pytest.raises(MCPError, match=r"cryptography.*pip install 'toolpost\[auth\]'") as caught:
        KeyRing([KEY], encrypt=True)
    assert isinstance(caught.value.__cause__, ImportError)


def test_without_cryptography_an_encrypted_string_is_refused_and_the_log_says_why(monkeypatch):
    sealed = SECRET.seal(b"x", audience="cursor")
    without_cryptography(monkeypatch)
    assert "`cryptography` cannot be imported" in refusal(KeyRing([KEY]), sealed)


# --------------------------------------------------------------------- the format, pinned
# Made by a second implementation of the layout (cryptography's HKDF, hashlib, struct). If one of these
# fails, strings in the hands of clients have become worthless: give the new layout a new form instead.

VECTORS = [
    (
        (KEY, b"", "cursor", [], None),
        "AYW8RFf__________9Q3WVVjt5zO244K3BbgUAQdJiqi0wEka3MqwB_leHmh",
    ),
    (
        (KEY, b"page 2", "cursor", [], None),
        "AYW8RFf__________3BhZ2UgMqgUN6Y5MezQCETQ7cW3MhTY5qbkO2iD5zNK0S7SLyrO",
    ),
    (
        (KEY, b"\x00\xff", "request-state of shop", ["ann", "tools/call", b"\x01\x02"], 1_800_000_000),
        "AYW8RFcAAAAAa0nSAAD_cKAggw4Z52aPk5ovQHf4oDTzKfpEL3YeYFmIqHLef5w",
    ),
    (
        ("schlüssel, zweiunddreißig bytes!", "ü".encode(), "sitzung ü", ["", b""], 0),
        "AT2oDlMAAAAAAAAAAMO85nexKGvQdh1ApDdmml65S4bATt8MoBb4PSfH7AfEp6s",
    ),
]


@pytest.mark.parametrize(("given", "sealed"), VECTORS)
def test_the_plain_form_has_not_changed(given, sealed):
    key, payload, audience, binding, expires = given
    ring = KeyRing([key], encrypt=False)
    assert ring.seal(payload, audience=audience, binding=binding, expires=expires) == sealed
    assert ring.open(sealed, audience=audience, binding=binding, now=-1) == payload


def test_the_encrypted_form_has_not_changed():
    sealed = "AoW8RFcAAAAAa0nSAAABAgMEBQYHCAkKC1an3Ob101QdN2nrOkfjiBGab0qfRjU"
    assert SECRET.open(sealed, audience="cursor", binding=["ann"], now=1_799_999_999) == b"page 2"


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(seal) == (0, 3)


def test_a_key_for_another_purpose_is_stable_and_differs():
    ring = KeyRing(["x" * MIN_KEY, "y" * MIN_KEY])
    tokens = ring.derive("tokens")
    assert tokens == KeyRing(["x" * MIN_KEY, "y" * MIN_KEY]).derive("tokens")
    assert {len(key) for key in tokens} == {32}
    assert len({*tokens, *ring.derive("cookies")}) == 4
