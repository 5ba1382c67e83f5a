"""Validators: which records a node holds. Names and rules are Python hivemind's."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from typing import Any, Iterable, Iterator, List, Optional

from . import _msgpack
from .crypto import RSAPrivateKey, RSAPublicKey

#: the subkey of a record that has none
IS_REGULAR_VALUE = b"\xc0"


@dataclasses.dataclass(frozen=True)
class DHTRecord:
    """A record as validators see it."""

    key: bytes  #: the key's id, 20 bytes
    subkey: bytes  #: msgpack; IS_REGULAR_VALUE: none
    value: bytes  #: msgpack, followed by a signature if there is one
    expiration_time: float  #: Unix seconds


class RecordValidatorBase(ABC):
    """Says which records a node holds. One's own has its validate() called on a thread of Python, one record at a time;
    a record without an answer within two seconds is refused. It neither signs nor strips values: that is for
    RSASignatureValidator.
    """

    @abstractmethod
    def validate(self, record: DHTRecord) -> bool:
        """Whether the record may be held. An exception is logged, and refuses it."""

    def sign_value(self, record: DHTRecord) -> bytes:
        """The value with a signature."""
        return record.value

    def strip_value(self, record: DHTRecord) -> bytes:
        """The value without its signature."""
        return record.value

    @property
    def priority(self) -> int:
        """Lower ones sign earlier, and validate later."""
        return 0

    def merge_with(self, other: "RecordValidatorBase") -> bool:
        """True: this one does what the other does from now on."""
        return False


class CompositeValidator(RecordValidatorBase):
    """Several validators in their order."""

    def __init__(self, validators: Iterable[RecordValidatorBase] = ()) -> None:
        self._validators: List[RecordValidatorBase] = []
        self.extend(validators)

    def extend(self, validators: Iterable[RecordValidatorBase]) -> None:
        kept = list(self._validators)
        for new in validators:
            if not any(present.merge_with(new) for present in kept):
                kept.append(new)
        # Assigned once, as records are validated on other threads: a list that is being sorted looks empty.
        self._validators = sorted(kept, key=lambda one: one.priority)

    def validate(self, record: DHTRecord) -> bool:
        validators = self._validators
        for at, validator in enumerate(reversed(validators)):
            if not validator.validate(record):
                return False
            if at < len(validators) - 1:
                record = dataclasses.replace(record, value=validator.strip_value(record))
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        for validator in self._validators:
            record = dataclasses.replace(record, value=validator.sign_value(record))
        return record.value

    def strip_value(self, record: DHTRecord) -> bytes:
        for validator in reversed(self._validators):
            record = dataclasses.replace(record, value=validator.strip_value(record))
        return record.value


def flattened(validators: Iterable[RecordValidatorBase]) -> Iterator[RecordValidatorBase]:
    """Validators, with those of a CompositeValidator in its place. Its subclasses stay: they may have other rules."""
    for one in validators:
        if type(one) is CompositeValidator:
            yield from flattened(one._validators)
        else:
            yield one


class RSASignatureValidator(RecordValidatorBase):
    """Protects records whose key or subkey contains an owner, "[owner:ssh-rsa ...]": only who has the private key
    writes them. A DHT checks and signs them in the library, without Python.

    :param private_key: signs records that this process owns; default: the one of the process
    """

    PUBLIC_KEY_FORMAT = b"[owner:_key_]"
    SIGNATURE_FORMAT = b"[signature:_value_]"
    PUBLIC_KEY_REGEX = re.escape(PUBLIC_KEY_FORMAT).replace(b"_key_", rb"(.+?)")
    _PUBLIC_KEY_RE = re.compile(PUBLIC_KEY_REGEX)
    _SIGNATURE_RE = re.compile(re.escape(SIGNATURE_FORMAT).replace(b"_value_", rb"(.+?)"))

    def __init__(self, private_key: Optional[RSAPrivateKey] = None) -> None:
        self._private_key = private_key or RSAPrivateKey.process_wide()
        public = self._private_key.get_public_key().to_bytes()
        self._local_public_key = self.PUBLIC_KEY_FORMAT.replace(b"_key_", public)

    @property
    def local_public_key(self) -> bytes:
        """What to put into keys or subkeys, to own them."""
        return self._local_public_key

    def validate(self, record: DHTRecord) -> bool:
        owners = set(self._PUBLIC_KEY_RE.findall(record.key) + self._PUBLIC_KEY_RE.findall(record.subkey or b""))
        if not owners:
            return True
        signatures = self._SIGNATURE_RE.findall(record.value)
        if len(owners) > 1 or len(signatures) != 1:
            return False
        stripped = dataclasses.replace(record, value=self.strip_value(record))
        try:
            return RSAPublicKey.from_bytes(owners.pop()).verify(self._serialize_record(stripped), signatures[0])
        except ValueError:
            return False

    def sign_value(self, record: DHTRecord) -> bytes:
        if self._local_public_key not in record.key and self._local_public_key not in (record.subkey or b""):
            return record.value
        signature = self._private_key.sign(self._serialize_record(record))
        return record.value + self.SIGNATURE_FORMAT.replace(b"_value_", signature)

    def strip_value(self, record: DHTRecord) -> bytes:
        return self._SIGNATURE_RE.sub(b"", record.value)

    def _serialize_record(self, record: DHTRecord) -> bytes:
        return _msgpack.dumps(dataclasses.astuple(record))

    @property
    def priority(self) -> int:
        return 10

    def merge_with(self, other: RecordValidatorBase) -> bool:
        return isinstance(other, RSASignatureValidator)

    def __reduce__(self) -> Any:
        return RSASignatureValidator, (self._private_key,)
