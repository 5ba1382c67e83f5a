"""Validators of records: RSA keys, schemas, one's own."""

import dataclasses
import pickle

import pytest

from cohive import (
    DHT,
    CompositeValidator,
    DHTRecord,
    RecordValidatorBase,
    RSAPrivateKey,
    RSAPublicKey,
    RSASignatureValidator,
    get_dht_time,
)


def soon():
    return get_dht_time() + 60


def test_keys_sign_and_verify():
    key, other = RSAPrivateKey(), RSAPrivateKey()
    signature = key.sign(b"data")
    public = key.get_public_key()
    assert public.verify(b"data", signature) and not public.verify(b"dat", signature)
    assert not other.get_public_key().verify(b"data", signature) and not public.verify(b"data", b"nonsense")
    assert RSAPublicKey.from_bytes(public.to_bytes()).verify(b"data", signature)
    assert pickle.loads(pickle.dumps(key)).get_public_key().to_bytes() == public.to_bytes()
    assert RSAPrivateKey.process_wide() is RSAPrivateKey.process_wide()
    for wrong in (lambda: RSAPublicKey.from_bytes(b"ssh-ed25519 AAAA"), lambda: RSAPrivateKey(b"no key")):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("given", [lambda one: one, lambda one: CompositeValidator([CompositeValidator([one])])])
def test_only_the_owner_writes(given):
    alice = DHT(start=True, record_validators=[given(RSASignatureValidator(RSAPrivateKey()))])
    validator = RSASignatureValidator(RSAPrivateKey())
    bob = DHT(alice.get_visible_maddrs(), start=True)
    bob.add_validators([given(validator)])
    subkey = b"of bob" + validator.local_public_key
    assert bob.store("key", 1, soon(), subkey=subkey)
    assert not alice.store("key", 2, soon() + 5, subkey=subkey)
    assert alice.get("key", latest=True).value[subkey].value == 1
    assert bob.store("key", 3, soon() + 9, subkey=subkey) and alice.get("key", latest=True).value[subkey].value == 3
    bob.shutdown()
    alice.shutdown()


def test_without_that_validator_nobody_owns(swarm):
    first, second = swarm(2)
    assert first.store("key", 1, soon(), subkey=b"[owner:ssh-rsa AAAA]")
    assert second.get("key", latest=True).value[b"[owner:ssh-rsa AAAA]"].value == 1


class Even(RecordValidatorBase):
    """Accepts even numbers; fails at text."""

    def __init__(self):
        self.seen = []

    def validate(self, record):
        self.seen.append(record)
        number = __import__("cohive")._msgpack.loads(record.value)
        if isinstance(number, str):
            raise RuntimeError("a validator that fails")
        return number % 2 == 0


def test_ones_own_validator_is_asked_by_every_peer(swarm):
    validators = [Even(), Even()]
    first = DHT(start=True, record_validators=[validators[0]])
    second = DHT(first.get_visible_maddrs(), start=True)
    with pytest.raises(RuntimeError, match="Can't append new validators"):
        DHT(start=False).add_validators([Even()])
    second.add_validators([validators[1]])
    end = soon()
    assert first.store("key", 2, end) and not first.store("key", 3, end + 5)
    assert not second.store("key", 5, end + 7, subkey="s") and not second.store("key", "text", end + 9)
    assert second.get("key", latest=True).value == 2
    record = validators[1].seen[0]
    assert isinstance(record, DHTRecord) and len(record.key) == 20 and record.subkey == b"\xc0"
    assert record.value == b"\x02" and record.expiration_time == pytest.approx(end)
    second.shutdown()
    first.shutdown()


def test_a_validator_that_signs_is_refused():
    class Signs(Even):
        def sign_value(self, record):
            return record.value + b"!"

    with pytest.raises(TypeError, match="Signs signs values"):
        DHT(start=True, record_validators=[Signs()])


def test_a_list_that_changes_is_never_seen_empty():
    seen = []

    class Looks(Even):
        @property
        def priority(self):  # asked for while the list is sorted
            seen.append(len(both._validators))
            return 0

    both = CompositeValidator([Even()])
    both.extend([Looks()])
    assert seen == [1] and len(both._validators) == 2


def test_a_composite_with_rules_of_its_own_is_refused():
    class Strict(CompositeValidator):
        def validate(self, record):
            return False

    with pytest.raises(TypeError, match="Strict signs values"):
        DHT(start=True, record_validators=[Strict()])


def test_validators_merge_and_keep_their_order():
    key = RSASignatureValidator()
    both = CompositeValidator([key, Even(), RSASignatureValidator(RSAPrivateKey())])
    assert [type(one) for one in both._validators] == [Even, RSASignatureValidator]
    record = DHTRecord(b"key", b"sub" + key.local_public_key, b"\x02", 5.0)
    signed = dataclasses.replace(record, value=both.sign_value(record))
    assert signed.value.count(b"[signature:") == 1 and both.validate(signed) and both.strip_value(signed) == b"\x02"
    assert not both.validate(record)
    assert pickle.loads(pickle.dumps(key)).local_public_key == key.local_public_key


def test_schemas(swarm):
    pydantic = pytest.importorskip("pydantic.v1", reason="no pydantic here")
    from cohive import BytesWithPublicKey, SchemaValidator

    class Schema(pydantic.BaseModel):
        name: bytes
        numbers: __import__("typing").Dict[bytes, pydantic.conint(ge=0, strict=True)]
        owned: __import__("typing").Dict[BytesWithPublicKey, bytes]

    validator = SchemaValidator(Schema, allow_extra_keys=False, prefix="run")
    first, second = swarm(2, record_validators=[validator])
    assert first.store("run_name", b"text", soon()) and not first.store("run_name", "text", soon() + 5)
    assert first.store("run_numbers", 5, soon(), subkey=b"a")
    for wrong, subkey in ((-1, b"b"), (5.0, b"b"), (5, "text"), (5, None), ({b"b": 1}, None)):
        assert not first.store("run_numbers", wrong, soon() + 5, subkey=subkey)
    assert not first.store("name", b"text", soon()) and not first.store("run_owned", b"x", soon(), subkey=b"nobody's")
    assert first.store("run_owned", b"x", soon(), subkey=b"[owner:me]")
    assert second.get("run_numbers", latest=True).value[b"a"].value == 5
    assert pickle.loads(pickle.dumps(RSASignatureValidator()))
